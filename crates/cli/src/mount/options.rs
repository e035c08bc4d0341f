//! The `-o` options of mount(8) and ours.

use engine::options::{Given, is_known};
use engine::{Verb, size};
use std::path::PathBuf;
use vfs::Atime;

/// The parsed options.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Options {
    /// `ro`.
    pub read_only: bool,
    /// `remount`: change the flags of a mount that is there.
    pub remount: bool,
    /// `allow_other`.
    pub allow_other: bool,
    /// `nosuid`.
    pub nosuid: bool,
    /// `nodev`.
    pub nodev: bool,
    /// `noexec`.
    pub noexec: bool,
    /// `noatime`, `relatime`, `strictatime`.
    pub atime: Atime,
    /// `offset=`: where in the file or device the image begins, in bytes.
    pub offset: u64,
    /// `sync` or `dirsync`.
    pub sync: bool,
    /// `order`: requests of durability are barriers.
    pub order: bool,
    /// `fsname=`: the source in the mount table.
    pub fsname: Option<String>,
    /// `threads=`: the number of threads of the server.
    pub threads: Option<usize>,
    /// `--record`: the directory of the run that is recorded, and of no other option.
    pub record: Option<PathBuf>,
    /// `--record-output`: whether the run has the output of a program, which is passed on.
    pub record_output: bool,
    /// Options of engines.
    pub engine: Vec<Given>,
}

impl Options {
    /// Parses comma-separated options. Those that concern mount(8) or fstab(5) only, and
    /// those that are always in force, are ignored. With `sloppy`, so are unknown ones.
    ///
    /// # Errors
    /// The option that is unknown or has a wrong value.
    pub(crate) fn parse<'a>(
        lists: impl IntoIterator<Item = &'a str>,
        sloppy: bool,
    ) -> Result<Self, String> {
        let mut options = Self::default();
        for option in lists.into_iter().flat_map(split) {
            let known = options.set_flag(option)
                || options.set_value(option)?
                || options.set_engine(option)
                || is_ignored(option);
            if !known && !sloppy {
                return Err(format!("mount option '{option}' is unknown"));
            }
        }
        Ok(options)
    }

    fn set_flag(&mut self, option: &str) -> bool {
        match option {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "remount" => self.remount = true,
            "allow_other" => self.allow_other = true,
            "nosuid" => self.nosuid = true,
            "suid" => self.nosuid = false,
            "nodev" => self.nodev = true,
            "dev" => self.nodev = false,
            "noexec" => self.noexec = true,
            "exec" => self.noexec = false,
            "user" | "users" => (self.nosuid, self.nodev, self.noexec) = (true, true, true),
            "owner" | "group" => (self.nosuid, self.nodev) = (true, true),
            "sync" | "dirsync" => self.sync = true,
            "async" => self.sync = false,
            "order" => self.order = true,
            "noatime" => self.atime = Atime::Never,
            "atime" | "relatime" | "nostrictatime" => self.atime = Atime::Relative,
            "strictatime" | "norelatime" => self.atime = Atime::Strict,
            _ => return false,
        }
        true
    }

    fn set_value(&mut self, option: &str) -> Result<bool, String> {
        let Some((name, value)) = option.split_once('=') else {
            return Ok(false);
        };
        let wrong = |why: &dyn std::fmt::Display| format!("mount option '{option}': {why}");
        match name {
            "offset" => self.offset = size::parse(value).map_err(|e| wrong(&e))?,
            "fsname" => self.fsname = Some(value.to_owned()),
            "threads" => match value.parse() {
                Ok(n @ 1..=256) => self.threads = Some(n),
                _ => return Err(wrong(&"a number from 1 to 256 is needed")),
            },
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Takes an option that some engine has. The engine of the image judges it later.
    fn set_engine(&mut self, option: &str) -> bool {
        let given = Given::mount_option(option);
        let is_known = is_known(engines::all(), Verb::Mount, &given.name);
        if is_known {
            // The last word counts.
            self.engine.retain(|earlier| earlier.name != given.name);
            self.engine.push(given);
        }
        is_known
    }
}

/// Splits at the commas that are neither in quotes nor in parentheses or brackets.
fn split(list: &str) -> impl Iterator<Item = &str> {
    let (mut quoted, mut depth) = (false, 0_u32);
    list.split(move |c| {
        match c {
            '"' => quoted = !quoted,
            '(' | '[' if !quoted => depth += 1,
            ')' | ']' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && !quoted && depth == 0
    })
}

/// Options that others act on, that are always in force, or that mean nothing here.
fn is_ignored(option: &str) -> bool {
    const NAMES: &[&str] = &[
        "",
        // mount(8), fstab(5)
        "defaults",
        "auto",
        "noauto",
        "nouser",
        "nousers",
        "noowner",
        "nogroup",
        "nofail",
        "fail",
        "_netdev",
        "silent",
        "loud",
        "lazytime",
        "nolazytime",
        "diratime",
        "nodiratime",
        "mand",
        "nomand",
        "iversion",
        "noiversion",
        // FUSE
        "default_permissions",
    ];
    const PREFIXES: &[&str] = &[
        "x-",
        "X-",
        "comment=",
        "subtype=",
        "user=",
        "uhelper=",
        "helper=",
        // Options that the mount table shows of a FUSE mount, and that a remount hands back.
        "user_id=",
        "group_id=",
        "rootmode=",
        "max_read=",
    ];
    NAMES.contains(&option) || PREFIXES.iter().any(|p| option.starts_with(p))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<Options, String> {
        Options::parse([list], false)
    }

    #[test]
    fn fstab_options_are_ignored() {
        let list = "defaults,_netdev,nofail,noauto,x-systemd.automount,x-gvfs-show,rw,,async";
        assert_eq!(parse(list), Ok(Options::default()));
    }

    #[test]
    fn the_last_word_counts() {
        assert!(!parse("ro,rw").unwrap().read_only);
        assert!(parse("rw,ro").unwrap().read_only);
        assert_eq!(parse("noatime,relatime").unwrap().atime, Atime::Relative);
    }

    #[test]
    fn user_mounts_are_restricted() {
        let options = parse("user,exec").unwrap();
        assert!(options.nosuid && options.nodev && !options.noexec);
    }

    #[test]
    fn options_with_values_are_parsed() {
        let options = parse("fsname=a=b,threads=3,offset=1M").unwrap();
        assert_eq!(options.fsname.as_deref(), Some("a=b"));
        assert_eq!(options.threads, Some(3));
        assert_eq!(options.offset, 1 << 20);
    }

    #[test]
    fn engines_get_their_options_as_they_were_written() {
        let stack = "uhfs > ext2 > journal(full, log=1) > cache(8M, wave=8) > [disk, disk(/log)]";
        let list = format!("ro,stack={stack},noatime,commit=5,commit=7,unsafe-no-flush");
        let options = parse(&list).unwrap();
        assert!(options.read_only && options.atime == Atime::Never);
        let given = |name: &str| {
            options
                .engine
                .iter()
                .find(|given| given.name == name)
                .unwrap()
        };
        assert_eq!(given("stack").value, Some(stack.into()));
        assert_eq!(given("commit").value, Some("7".into()));
        assert_eq!(given("commit").as_written, "mount option 'commit=7'");
        assert_eq!(given("unsafe-no-flush").value, None);
        assert_eq!(options.engine.len(), 3);
    }

    #[test]
    fn errors_name_the_wrong_option() {
        let unknown = parse("ro,nodelalloc").unwrap_err();
        assert_eq!(unknown, "mount option 'nodelalloc' is unknown");
        assert!(parse("threads=0").is_err());
        assert!(Options::parse(["nodelalloc,ro"], true).unwrap().read_only);
    }
}
