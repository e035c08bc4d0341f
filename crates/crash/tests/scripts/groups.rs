//! Scripts with groups: two and three of them, in each shape of order, with changes of each kind.

/// Scripts with groups.
pub const GROUPS: [&str; 13] = [
    // Two groups: a copy, then the removal of the original.
    "create f 644\nwrite f 0 3000 1\nsync\ngroup a\ngroup b\nengage a\ncreate n 644\n\
     write n 0 3000 2\ndisengage a\ndepend b a\nengage b\nunlink f\n",
    // Data of two files, which no call of metadata follows.
    "create f 644\nwrite f 0 2000 1\ncreate g 644\nwrite g 0 2000 2\nsync\ngroup a\ngroup b\n\
     engage a\nwrite f 0 2000 3\ndisengage a\ndepend b a\nengage b\nwrite g 0 2000 4\n",
    // A sync of a later change, which has no data.
    "create f 644\nwrite f 0 2000 1\nsync\ngroup a\ngroup b\nengage a\nwrite f 0 2000 3\n\
     disengage a\ndepend b a\nengage b\ncreate n 644\nfsync n\ncreate m 644\n",
    // A chain of three, the last of which is synced.
    "create f 644\nwrite f 0 2000 1\nmkdir A 755\nsync\ngroup a\ngroup b\ngroup c\nengage a\n\
     write f 500 1000 2\ndisengage a\ndepend b a\nengage b\ncreate A/n 644\nwrite A/n 0 100 3\n\
     disengage b\ndepend c b\nengage c\nrename f g replace\ndisengage c\ncreate z 644\npgsync c\n\
     create y 644\n",
    // A chain with an empty group in the middle, and groups that are closed early.
    "create f 644\nwrite f 0 2000 1\nsync\ngroup a\ngroup b\ngroup c\nengage a\ncreate n 644\n\
     append n 2000 2\ndisengage a\ndepend b a\ndepend c b\npgclose a\npgclose b\nengage c\n\
     truncate f 100\npgclose c\ncreate m 644\n",
    // A diamond: two groups after one, and one after both.
    "mkdir A 755\nmkdir B 755\ncreate f 644\nsync\ngroup a\ngroup b\ngroup c\ngroup d\nengage a\n\
     write f 0 100 1\ndisengage a\ndepend b a\ndepend c a\nengage b\ncreate A/n 644\ndisengage b\n\
     engage c\ncreate B/n 644\ndisengage c\ndepend d b\ndepend d c\nengage d\ncreate m 644\n",
    // One group after two.
    "mkdir A 755\ncreate f 644\nwrite f 0 2000 1\nsync\ngroup a\ngroup b\ngroup c\nengage a\n\
     write f 0 1000 2\ndisengage a\nengage b\nlink f A/f\ndisengage b\ndepend c a\ndepend c b\n\
     engage c\nchmod f 600\nsetxattr f user.a 10 3 set\n",
    // Two independent groups, one of which is synced.
    "create f 644\ncreate g 644\nsync\ngroup a\ngroup b\nengage a\nwrite f 0 2000 1\ndisengage a\n\
     engage b\nwrite g 0 2000 2\ndisengage b\nengage a\nwrite f 3000 100 3\ndisengage a\npgsync b\n\
     create n 644\n",
    // Two pairs of groups whose engagement is interleaved.
    "create f 644\ncreate g 644\nsync\ngroup a\ngroup b\nengage a\nengage b\nwrite f 0 1000 1\n\
     disengage a\nwrite g 0 1000 2\nengage a\ncreate n 644\ndisengage b\ncreate m 644\n\
     disengage a\ngroup c\ngroup d\ndepend c a\ndepend d b\nengage c\nengage d\nunlink f\n\
     disengage c\nunlink g\n",
    // A barrier within a later group.
    "create f 644\nwrite f 0 1000 1\nsync\ngroup a\ngroup b\nengage a\ncreate n 644\ndisengage a\n\
     depend b a\nengage b\nwrite f 0 1000 2\nbarrier\ncreate m 644\nbarrier\nwrite f 2000 500 3\n",
    // Earlier changes are partly durable when the order is made.
    "create f 644\nwrite f 0 2000 1\ncreate g 644\nsync\ngroup a\ngroup b\nengage a\n\
     write f 0 1000 2\nfsync f\nwrite f 1000 1000 3\ncreate n 644\nfsync n\ncreate m 644\n\
     disengage a\ndepend b a\nengage b\nwrite g 0 1000 4\nunlink n\n",
    // A block leaves one group and is filled again in the next one.
    "create f 644\nwrite f 0 3000 1\ncreate g 644\nsync\ngroup a\ngroup b\nengage a\n\
     truncate f 0\ncreate n 644\ndisengage a\ndepend b a\nengage b\nwrite g 0 3000 2\n\
     disengage b\npgsync b\n",
    // Changes outside of groups stand between them, and share their blocks.
    "create f 644\nsync\ngroup a\ngroup b\ncreate x 644\nengage a\ncreate n 644\ndisengage a\n\
     create y 644\ndepend b a\nengage b\ncreate m 644\ndisengage b\ncreate z 644\nunlink x\n",
];

/// Kinds of calls. The number in place of `#` gives each group files of its own.
const CALLS: [&str; 8] = [
    "write f# 0 2000 1#\n",
    "append f# 3000 2#\n",
    "truncate f# 100\n",
    "create n# 644\nwrite n# 0 1500 3#\n",
    "unlink f#\n",
    "rename f# A/f# replace\n",
    "mkdir d# 755\ncreate d#/n 644\n",
    "create t# 644\nwrite t# 0 1000 4#\nrename t# f# replace\n",
];

/// Of these, the ones for three groups: data alone, a new file, and a removal.
const FEW: [&str; 3] = [CALLS[0], CALLS[3], CALLS[4]];

/// The order of three groups: pairs of a later and an earlier one.
const SHAPES: [&[(usize, usize)]; 4] = [
    &[(2, 1), (3, 2)],
    &[(2, 1), (3, 1)],
    &[(3, 1), (3, 2)],
    &[(2, 1), (3, 1), (3, 2)],
];

/// A script of one group for each of the calls, in this order.
fn in_groups(calls: &[&str], order: &[(usize, usize)]) -> String {
    let mut script = "mkdir A 755\n".to_string();
    for group in 1..=calls.len() {
        script += &format!("create f{group} 644\nwrite f{group} 0 2500 5{group}\n");
    }
    script += "sync\n";
    for (group, calls) in (1..).zip(calls) {
        script += &format!("group g{group}\n");
        for (_, earlier) in order.iter().filter(|(later, _)| *later == group) {
            script += &format!("depend g{group} g{earlier}\n");
        }
        let calls = calls.replace('#', &group.to_string());
        script += &format!("engage g{group}\n{calls}disengage g{group}\n");
    }
    script
}

/// Every pair of calls in two groups.
pub fn pairs() -> Vec<String> {
    let pairs = CALLS.iter().flat_map(|a| CALLS.map(|b| [*a, b]));
    pairs.map(|calls| in_groups(&calls, &[(2, 1)])).collect()
}

/// Every order of three groups, with some calls.
pub fn triples() -> Vec<String> {
    let mut scripts = Vec::new();
    for order in SHAPES {
        for (a, b) in FEW.iter().flat_map(|a| FEW.map(|b| (*a, b))) {
            scripts.extend(FEW.map(|c| in_groups(&[a, b, c], order)));
        }
    }
    scripts
}
