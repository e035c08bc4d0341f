use super::*;
use crate::{Bytes, Entry, Header, Kind, Place, Source};
use std::collections::BTreeSet;

/// A run of calls in a notation of one line each: `create f`, `write f TEXT`, `at f OFFSET TEXT`,
/// `fsync f`, `rename f g`, `link f g`, `unlink f`, `mkdir d`, `cut f`, `cut f SIZE`, `close f`, `say TEXT`.
/// All names are in the root. `=` ends the setup.
struct Script {
    run: Run,
    tree: Tree,
    next: u64,
}

pub(crate) fn run(script: &str) -> Run {
    let mut made = Script {
        run: Run::new(Header::new(Source::Mount, "a test")),
        tree: Tree::default(),
        next: 2,
    };
    for line in script
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        if line == "=" {
            made.run.header.setup = made.run.entries.len();
            continue;
        }
        let call = made.call(line);
        made.tree.apply(&call, &made.run.data).unwrap();
        made.run.entries.push(Entry::new(call, line));
    }
    made.run
}

impl Script {
    fn node(&self, name: &str) -> Node {
        self.tree.resolve(name.as_bytes()).unwrap()
    }

    fn call(&mut self, line: &str) -> Call {
        let words: Vec<&str> = line.split(' ').collect();
        let at = |name: &str| Place::new(Node::ROOT, name.as_bytes());
        match words[..] {
            ["create", name] => self.make(at(name), Kind::File),
            ["mkdir", name] => self.make(at(name), Kind::Directory),
            ["write", name, text] => {
                let node = self.node(name);
                let off = self.tree.get(node).unwrap().contents.size();
                self.write(node, off, text)
            }
            ["at", name, off, text] => self.write(self.node(name), off.parse().unwrap(), text),
            ["fsync", name] => Call::Sync {
                node: self.node(name),
                data_only: false,
                range: None,
            },
            ["dsync", name, off, len] => Call::Sync {
                node: self.node(name),
                data_only: true,
                range: Some((off.parse().unwrap(), len.parse().unwrap())),
            },
            ["rename", from, to] => Call::Rename {
                from: at(from),
                to: at(to),
                exchange: false,
            },
            ["link", from, to] => Call::Link {
                node: self.node(from),
                at: at(to),
            },
            ["unlink", name] => Call::Remove { at: at(name) },
            ["cut", name] => Call::SetSize {
                node: self.node(name),
                size: 0,
            },
            ["cut", name, size] => Call::SetSize {
                node: self.node(name),
                size: size.parse().unwrap(),
            },
            ["close", name] => Call::Close {
                node: self.node(name),
            },
            ["say", text] => Call::Output {
                data: self.run.keep(text.as_bytes()),
            },
            _ => panic!("{line}"),
        }
    }

    fn make(&mut self, at: Place, kind: Kind) -> Call {
        self.next += 1;
        Call::Make {
            node: Node(self.next),
            at: Some(at),
            kind,
            perm: 0o644,
            uid: 0,
            gid: 0,
        }
    }

    fn write(&mut self, node: Node, off: u64, text: &str) -> Call {
        Call::Write {
            node,
            off,
            data: self.run.keep(text.as_bytes()),
        }
    }
}

/// The trees of all legal states, as text such as `f=one g=`, `_` for a zero byte.
fn states(script: &str, model: Model) -> BTreeSet<String> {
    let run = run(script);
    let modelled = Modelled::new(&run, model).unwrap();
    let mut found = BTreeSet::new();
    for moment in modelled.moments() {
        let legal = Legal::new(&modelled, moment);
        for (subset, present) in legal.states(1) {
            assert_eq!(legal.present(&subset), Some(present.clone()));
            let again: Subset = subset.to_string().parse().unwrap();
            assert_eq!(again, subset);
            found.insert(text(&modelled.tree(&present)));
        }
    }
    found
}

fn text(tree: &Tree) -> String {
    let root = tree.get(Node::ROOT).unwrap();
    let name = |(name, node): (&Bytes, &Node)| {
        let bytes = tree.get(*node).unwrap().contents.bytes(100).unwrap();
        let bytes = String::from_utf8(bytes).unwrap().replace('\0', "_");
        format!("{name}={bytes}")
    };
    root.names.iter().map(name).collect::<Vec<_>>().join(" ")
}

fn set(states: &[&str]) -> BTreeSet<String> {
    states.iter().map(|state| (*state).to_owned()).collect()
}

/// A file is replaced by a new one that was not synchronised.
const REPLACE: &str = "create f\nwrite f old\n=\ncreate t\nwrite t new\nrename t f\n";

#[test]
fn a_name_can_precede_the_data() {
    let new = ["f=old", "f=old t=", "f=old t=new", "f=new"];
    let zero = ["f="];
    let torn = ["f=old t=___", "f=___"];
    let before_data = [&new[..], &zero].concat();
    assert_eq!(states(REPLACE, Model::Ext4Journal), set(&new));
    assert_eq!(states(REPLACE, Model::AtReturn), set(&new));
    // It has space for the new contents, but not the contents.
    let with_space = [&new[..], &torn].concat();
    assert_eq!(states(REPLACE, Model::Ext4Ordered), set(&with_space));
    assert_eq!(states(REPLACE, Model::Xfs), set(&before_data));
    assert_eq!(states(REPLACE, Model::Btrfs), set(&before_data));
    assert_eq!(
        states(REPLACE, Model::Posix),
        set(&[&before_data[..], &torn].concat())
    );
}

#[test]
fn a_new_name_without_an_old_one_waits_for_no_data() {
    let script = "create t\nwrite t new\nrename t f\n";
    assert!(states(script, Model::Ext4Ordered).contains("f="));
    assert!(!states(script, Model::Ext4Journal).contains("f="));
}

#[test]
fn fsync_of_a_file_keeps_its_name_except_under_posix() {
    let script = "create f\nwrite f a\nfsync f\nsay done\n";
    for model in Model::ALL {
        let run = run(script);
        let modelled = Modelled::new(&run, model).unwrap();
        let legal = Legal::new(&modelled, run.entries.len());
        let found: BTreeSet<_> = legal
            .states(1)
            .map(|(_, present)| text(&modelled.tree(&present)))
            .collect();
        let expected = match model {
            Model::Posix => set(&["", "f=a"]),
            _ => set(&["f=a"]),
        };
        assert_eq!(found, expected, "{model}");
    }
}

/// A synchronous write makes its own pages durable, not those of earlier writes.
#[test]
fn a_synchronous_write_is_not_an_fsync_of_the_file() {
    let script = "create f\nat f 0 a\nat f 4096 a\nfsync f\nfsync .\n=\nat f 0 b\nat f 4096 b\ndsync f 4096 1\nsay done\n";
    for model in Model::ALL {
        let run = run(script);
        let modelled = Modelled::new(&run, model).unwrap();
        let legal = Legal::new(&modelled, run.entries.len());
        let pages = |tree: &Tree| {
            let names = &tree.get(Node::ROOT).unwrap().names;
            let bytes = tree.get(*names.values().next().unwrap()).unwrap();
            let bytes = bytes.contents.bytes(4097).unwrap();
            String::from_utf8(vec![bytes[0], bytes[4096]]).unwrap()
        };
        let found: BTreeSet<_> = legal
            .states(1)
            .map(|(_, present)| pages(&modelled.tree(&present)))
            .collect();
        let expected = match model {
            Model::Ext4Journal | Model::AtReturn => set(&["bb"]),
            _ => set(&["ab", "bb"]),
        };
        assert_eq!(found, expected, "{model}");
    }
}

#[test]
fn fdatasync_of_a_directory_keeps_its_names() {
    let mut run = run("create f\nwrite f a\nfsync f\nfsync .\n=\nunlink f\nfsync .\nsay done\n");
    for entry in &mut run.entries {
        if let Call::Sync { data_only, .. } = &mut entry.call {
            *data_only = true;
        }
    }
    for model in Model::ALL {
        let modelled = Modelled::new(&run, model).unwrap();
        let legal = Legal::new(&modelled, run.entries.len());
        let trees = legal
            .states(1)
            .map(|(_, present)| text(&modelled.tree(&present)));
        assert_eq!(trees.collect::<BTreeSet<_>>(), set(&[""]), "{model}");
    }
}

#[test]
fn fsync_of_one_file_keeps_others_only_in_a_journal() {
    let script = "create a\nwrite a 1\ncreate b\nwrite b 2\nfsync b\nsay done\n";
    let newest = |model| {
        let run = run(script);
        let modelled = Modelled::new(&run, model).unwrap();
        let legal = Legal::new(&modelled, run.entries.len());
        let trees = legal
            .states(1)
            .map(|(_, present)| text(&modelled.tree(&present)));
        trees.collect::<BTreeSet<_>>()
    };
    assert_eq!(
        newest(Model::Ext4Ordered),
        set(&["a= b=2", "a=1 b=2", "a=_ b=2"])
    );
    assert_eq!(newest(Model::Ext4Journal), set(&["a=1 b=2"]));
    assert_eq!(newest(Model::Xfs), set(&["a= b=2", "a=1 b=2"]));
    assert_eq!(newest(Model::Btrfs), set(&["a= b=2", "a=1 b=2", "b=2"]));
    assert_eq!(newest(Model::AtReturn), set(&["a=1 b=2"]));
    let posix = newest(Model::Posix);
    assert!(
        posix.contains("a=1") && posix.contains("a=_ b=2"),
        "{posix:?}"
    );
}

#[test]
fn a_file_that_is_cut_and_written_again_is_whole_after_its_close() {
    let script = "create f\nwrite f old\n=\ncut f\nwrite f new\nclose f\ncreate g\n";
    let ext4 = states(script, Model::Ext4Ordered);
    assert!(ext4.contains("f=") && !ext4.contains("f= g="), "{ext4:?}");
    assert!(states(script, Model::Xfs).contains("f= g="));
}

#[test]
fn pages_of_an_overwrite_are_kept_apart() {
    let script = "create f\nat f 0 a\nat f 4096 b\n=\nat f 0 A\nat f 4096 B\n";
    let count = |model| {
        let run = run(script);
        let modelled = Modelled::new(&run, model).unwrap();
        Legal::new(&modelled, run.entries.len()).states(1).count()
    };
    assert_eq!(count(Model::Ext4Journal), 3);
    assert_eq!(count(Model::Ext4Ordered), 4);
    assert_eq!(count(Model::Posix), 4);
}

#[test]
fn an_append_within_a_page_can_leave_zeros_on_ext4() {
    let script = "create f\nwrite f a\n=\nwrite f b\n";
    assert_eq!(
        states(script, Model::Ext4Ordered),
        set(&["f=a", "f=a_", "f=ab"])
    );
    assert_eq!(states(script, Model::Xfs), set(&["f=a", "f=ab"]));
}

#[test]
fn a_page_that_was_cut_can_be_written_before_its_new_length() {
    let script = "create f\nwrite f abcd\n=\ncut f 2\nat f 0 A\n";
    let found = states(script, Model::Ext4Ordered);
    let expected = ["f=abcd", "f=ab__", "f=Ab__", "f=ab", "f=Ab"];
    assert_eq!(found, set(&expected));
    assert_eq!(
        states(script, Model::Ext4Journal),
        set(&["f=abcd", "f=ab", "f=Ab"])
    );
}

#[test]
fn btrfs_forces_the_end_of_an_earlier_use_of_a_name_only_if_it_is_durable() {
    let synced = |first: &str| {
        let script = format!("{first}rename t a\ncreate t\nwrite t new\nfsync t\nsay done\n");
        let run = run(&script);
        let modelled = Modelled::new(&run, Model::Btrfs).unwrap();
        let legal = Legal::new(&modelled, run.entries.len());
        let trees = legal
            .states(1)
            .map(|(_, present)| text(&modelled.tree(&present)));
        trees.collect::<BTreeSet<_>>()
    };
    let lost = |set: &BTreeSet<String>| set.contains("t=new");
    assert!(lost(&synced("create t\n")));
    assert!(!lost(&synced("create t\nfsync t\n")));
    assert!(!lost(&synced("create t\n=\n")));
}

#[test]
fn btrfs_logs_a_new_name_of_a_logged_file_before_earlier_calls() {
    let script = "create f\n=\nwrite f x\nfsync f\ncreate g\nrename f h\ncreate i\n";
    let found = states(script, Model::Btrfs);
    assert!(found.contains("h=x"), "{found:?}");
    assert!(!found.contains("h=x i="), "{found:?}");
    assert!(!states(script, Model::Xfs).contains("h=x"));
}

#[test]
fn large_runs_are_sampled_and_all_states_are_legal() {
    let mut script = String::new();
    for n in 0..40 {
        script.push_str(&format!("create f{n}\nwrite f{n} text\n"));
    }
    for model in Model::ALL {
        let run = run(&script);
        let modelled = Modelled::new(&run, model).unwrap();
        let legal = Legal::new(&modelled, run.entries.len());
        for (subset, present) in legal.states(7) {
            assert_eq!(legal.present(&subset), Some(present), "{model} {subset}");
        }
    }
}

#[test]
fn a_state_that_is_not_legal_is_refused() {
    let run = run(REPLACE);
    let modelled = Modelled::new(&run, Model::Ext4Journal).unwrap();
    let legal = Legal::new(&modelled, run.entries.len());
    assert_eq!(legal.present(&"1".parse().unwrap()), None);
    assert_eq!(legal.present(&"99".parse().unwrap()), None);
    assert!("1-".parse::<Subset>().is_err() && "9-1".parse::<Subset>().is_err());
    assert!("0-99999999".parse::<Subset>().is_err());
}
