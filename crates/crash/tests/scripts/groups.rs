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
