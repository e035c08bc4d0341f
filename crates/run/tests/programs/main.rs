//! Unmodified programs give the same results below the mount point as on tmpfs.
//!
//! The file system at the mount point is PXFS in an image; nothing is mounted there.

use medium::{Durability, MapOptions, MappedPmem};
use run::{Counts, Options, Prepared, Reason};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

/// Bytes of an image.
const BYTES: u64 = 64 << 20;

/// A directory on tmpfs with an image, a mount point and a directory for the same calls on tmpfs.
struct Place {
    dir: tempfile::TempDir,
}

/// The end of a command.
struct Finished {
    code: i32,
    counts: Counts,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        for name in ["at", "tmpfs"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let place = Self { dir };
        File::create(place.path("image"))
            .unwrap()
            .set_len(BYTES)
            .unwrap();
        let options = MapOptions {
            durability: Durability::Process,
            ..MapOptions::default()
        };
        let memory = Arc::new(MappedPmem::open(place.path("image"), &options).unwrap());
        pxfs::mkfs(&memory, &pxfs::MkfsOptions::default()).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a command with the library; `{}` in its arguments becomes the mount point. The output goes to
    /// a file, since the command has that of the test.
    fn run(&self, store: &str, command: &[&str]) -> (String, Finished) {
        let at = self.path("at");
        let output = self.path("output");
        let redirected = r#"exec >"$0" 2>&1; exec "$@""#;
        let words = ["sh", "-c", redirected, output.to_str().unwrap()].into_iter();
        let command = words.chain(command.iter().copied());
        let command = command.map(|word| OsString::from(word.replace("{}", at.to_str().unwrap())));
        let mut command = command;
        let options = Options {
            store: format!("{store}{}", self.path("image").display()),
            at: at.clone(),
            program: command.next().unwrap(),
            arguments: command.collect(),
            library: Some(library()),
        };
        let mut prepared = Prepared::new(&options).unwrap();
        let status = prepared.command.status().unwrap();
        let finished = Finished {
            code: status
                .code()
                .unwrap_or_else(|| panic!("{status}: {}", fs::read_to_string(&output).unwrap())),
            counts: prepared.end().unwrap(),
        };
        let text = fs::read_to_string(output).unwrap();
        (text.replace(at.to_str().unwrap(), "@"), finished)
    }

    /// Runs the command on tmpfs.
    fn on_tmpfs(&self, command: &[&str]) -> (String, i32) {
        let at = self.path("tmpfs");
        let words = command
            .iter()
            .map(|word| word.replace("{}", at.to_str().unwrap()));
        let words: Vec<String> = words.collect();
        let Output {
            status,
            stdout,
            stderr,
        } = Command::new("sh")
            .args(["-c", r#"exec "$@" 2>&1"#, "sh"])
            .args(words)
            .output()
            .unwrap();
        assert!(stderr.is_empty());
        let text = String::from_utf8_lossy(&stdout).replace(at.to_str().unwrap(), "@");
        (text, status.code().unwrap())
    }

    /// Runs the command in both places, and compares what it prints and returns.
    fn compare(&self, store: &str, command: &[&str]) -> Finished {
        let (expected, code) = self.on_tmpfs(command);
        let (found, finished) = self.run(store, command);
        assert_same(&expected, &found);
        assert_eq!(finished.code, code, "{command:?}: {found}");
        finished
    }
}

/// Fails with the first line that differs.
fn assert_same(expected: &str, found: &str) {
    let mut lines = expected.lines().zip(found.lines()).enumerate();
    if let Some((n, (expected, found))) = lines.find(|(_, (one, other))| one != other) {
        panic!("line {}:\n expected {expected}\n found    {found}", n + 1);
    }
    assert_eq!(expected, found);
}

/// The library of the example, which cargo builds with the tests.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let library = test
        .ancestors()
        .nth(2)
        .unwrap()
        .join("examples/libpreload_for_tests.so");
    assert!(
        library.exists(),
        "{} is built by `cargo test`",
        library.display()
    );
    library
}

/// Compiles a program in C.
fn compiled(place: &Place, name: &str, flags: &[&str]) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(name);
    let program = place.path(name.trim_end_matches(".c"));
    let status = Command::new("gcc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args(flags)
        .arg(source)
        .arg("-o")
        .arg(&program)
        .status();
    assert!(status.unwrap().success());
    program.to_str().unwrap().to_owned()
}

fn has(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output();
    let is_there = found.unwrap().status.success();
    if !is_there {
        skip::test(&format!("needs {program}"));
    }
    is_there
}

#[test]
fn each_call_returns_what_it_returns_on_tmpfs() {
    let place = Place::new();
    let program = compiled(&place, "corners.c", &[]);
    let finished = place.compare("", &[&program, "{}"]);
    assert!(finished.counts.of(Reason::Answered) > 1000);
}

#[test]
fn children_share_open_files_over_fork_exec_and_spawn() {
    let place = Place::new();
    let program = compiled(&place, "children.c", &[]);
    place.compare("turns:", &[&program, "{}"]);
}

/// Runs a part of `processes.c` in both places. The tests of the command run the other parts.
fn compare_part(part: &str) {
    let place = Place::new();
    let program = compiled(&place, "processes.c", &[]);
    place.compare("turns:", &[&program, "{}", part]);
}

#[test]
fn a_child_that_shares_memory_makes_the_first_call() {
    compare_part("first_in_child");
}

#[test]
fn a_new_program_has_the_signal_mask_of_the_old_one() {
    compare_part("signals_at_exec");
}

#[test]
fn a_waiting_signal_is_not_the_childs() {
    compare_part("signals_at_fork");
}

#[test]
fn handlers_on_another_stack_make_calls() {
    compare_part("on_other_stack");
}

#[test]
fn locks_are_those_of_the_kernel() {
    compare_part("locks");
}

#[test]
fn record_locks_stay_at_exec() {
    compare_part("locks_at_exec");
}

#[test]
fn crossed_locks_are_found() {
    compare_part("crossed_locks");
}

#[test]
fn buffers_may_be_larger_than_files() {
    compare_part("buffers");
}

#[test]
fn files_are_not_larger_than_the_limit() {
    compare_part("sizes");
}

/// `SEGV_PKUERR` is 4.
#[test]
fn a_stray_store_into_the_store_kills_and_calls_in_handlers_store() {
    let place = Place::new();
    let program = compiled(&place, "guard.c", &[]);
    let (text, finished) = place.run("", &[&program, "{}"]);
    if text == "no protection keys\n" {
        return skip::test("the processor or the kernel has no protection keys");
    }
    assert_eq!((&text[..], finished.code), ("code 4, handled\n", 0));
    assert!(finished.counts.of(Reason::Answered) > 100);
}

#[test]
fn a_program_that_makes_no_call_on_the_store_connects_to_nothing() {
    let place = Place::new();
    let (text, finished) = place.run(
        "/none",
        &["sh", "-c", "echo text; cat /dev/null; ls /dev/null"],
    );
    assert_eq!(text, "text\n/dev/null\n");
    assert_eq!(finished.counts.of(Reason::Answered), 0);
}

#[test]
fn a_store_that_cannot_be_reached_is_an_error_of_the_call() {
    let place = Place::new();
    let (text, finished) = place.run("/none", &["ls", "{}"]);
    assert!(text.contains("cannot reach the store /none"), "{text}");
    assert!(text.contains("Input/output error"), "{text}");
    assert_eq!(finished.code, 2);
}

/// No instruction of a static program is replaced, so its calls go to the kernel, whose directory is empty.
#[test]
fn calls_of_a_static_program_go_to_the_mount() {
    let place = Place::new();
    let program = compiled(&place, "corners.c", &["-static"]);
    let (_, finished) = place.run("", &[&program, "{}"]);
    assert_eq!(finished.counts.of(Reason::Answered), 0);
    assert!(place.path("at/file").exists());
}

#[test]
fn file_utilities_keep_a_tree() {
    let place = Place::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../medium");
    let source = source.to_str().unwrap();
    let script = |line: &str| line.replace("SOURCE", source);
    for line in [
        "cp -r SOURCE {}/tree",
        "diff -r SOURCE {}/tree",
        "find {}/tree -type f -size +4k | sort",
        "tar -C {} -cf {}/tree.tar tree",
        "mkdir {}/out",
        "tar -C {}/out -xf {}/tree.tar",
        "diff -r {}/tree {}/out/tree",
        "mv {}/out/tree {}/moved",
        "ln {}/moved/Cargo.toml {}/hard",
        "ln -s moved/Cargo.toml {}/soft",
        "cmp {}/hard {}/soft",
        "touch -d 2001-02-03T04:05:06Z {}/hard",
        "stat -L -c %h:%s:%Y:%a:%F {}/soft; ls -l {}/hard",
        "chmod 2751 {}/moved",
        "stat -c %a:%F {}/moved {}/soft",
        "sort -r -o {}/hard {}/hard",
        "sort {}/hard",
        "du -s --apparent-size {}/hard",
        "realpath {}/soft {}/moved/../hard",
        "rm -r {}/tree {}/moved {}/out/../out",
        "find {} -name none",
        "cp {}/hard /dev/shm/none/x",
    ] {
        let line = script(line);
        place.compare("", &["sh", "-c", &line]);
    }
}

#[test]
fn shell_scripts_share_redirected_files() {
    if !has("bash") {
        return;
    }
    let place = Place::new();
    let script = r#"
        cd "$1" && pwd
        (echo one; sh -c 'echo two'; /bin/echo three) >log
        echo four >>log
        exec 5<log
        read -r first <&5; cat <&5; echo "first $first"
        exec 5<&-
        for n in 3 1 2; do echo "$n"; done | tee unsorted | sort >sorted
        paste unsorted sorted
        mkdir -p a/b/c && cd a/b && pwd && cd ../.. && pwd
        wc -l < sorted
        { echo out; echo err >&2; } >both 2>&1; cat both
        cat <<END >here
text $(cat sorted | tr '\n' ' ')
END
        cat here
        test -x log; echo $?
        chmod +x log; test -x log; echo $?
        for file in *; do echo "$file"; done
        cat none; echo $?
        seq 2000 | xargs -n 500 echo >many; wc many
        env -i /bin/cat sorted
        cat /dev/stdin <sorted; cat /dev/fd/6 6<sorted
        rm -r a unsorted sorted both here many log; ls -A
    "#;
    place.compare("turns:", &["bash", "-c", script, "bash", "{}"]);
}

/// Nothing is mounted there: a call that went to the kernel would find, or leave, another file.
#[test]
fn relative_paths_reach_the_store_from_above_and_from_below() {
    let place = Place::new();
    let script = r#"
        cd "$1/.." && name=$(basename "$1") && mkdir -p $name/a/b && echo text >./$name/a/b/file
        cat $name/a/b/file .//./$name/a/../a/b/file; ls $name
        cd .. && cat "$(basename "$OLDPWD")/$name/a/b/file" # two levels above: by another name
        cd / && cat ".$1/a/b/file" && cd "$1/.."
        (cd $name && cat a/b/file && cd .. && cat $name/a/b/file && cd $name/a && pwd)
        mv $name/a/b/file $name/moved && ln -s moved $name/link && cat $name/link; ls -A $name
        rm -r $name/* && ls $name && ls ${name}x 2>/dev/null; echo end
    "#;
    place.compare("turns:", &["sh", "-c", script, "sh", "{}"]);
    assert!(fs::read_dir(place.path("at")).unwrap().next().is_none());
    let start_in = compiled(&place, "start_in.c", &["-static"]);
    let script =
        "pwd && echo text >file && cat file ../at/file && ls -A .. | grep -c at && rm file";
    let (text, finished) = place.run("turns:", &[&start_in, "{}", "/bin/sh", "-c", script]);
    assert_eq!(text, "@\ntext\ntext\n1\n");
    assert!(finished.counts.of(Reason::Answered) > 5);
    assert!(fs::read_dir(place.path("at")).unwrap().next().is_none());
}

#[test]
fn python_uses_files_and_a_database() {
    if !has("python3") {
        return;
    }
    let place = Place::new();
    let script = r#"
import os, sys, shutil, tempfile, mmap, sqlite3, subprocess, threading
os.chdir(sys.argv[1])
with open('text', 'w') as f: f.write('line\n' * 5000)
print(os.path.getsize('text'), sum(1 for _ in open('text')))
with open('text', 'rb') as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
    print(len(m), m[:4], m.find(b'line', 10))
os.makedirs('x/y/z'); open('x/y/z/f', 'w').close()
print(sorted(os.listdir('x')), [(len(d), f) for _, d, f in os.walk('x')])
with os.scandir('.') as entries: print(sorted((e.name, e.is_dir()) for e in entries))
os.setxattr('text', 'user.k', b'v'); print(os.listxattr('text'), os.getxattr('text', 'user.k'))
fd = os.open('x', os.O_RDONLY); print(os.stat('y', dir_fd=fd).st_mode); os.fchdir(fd); print(os.path.basename(os.getcwd()))
os.chdir('..'); os.close(fd)
shutil.copytree('x', 'copy'); shutil.rmtree('x'); print(os.path.exists('x'))
with tempfile.TemporaryFile(dir='.') as t: t.write(b'abc'); t.seek(1); print(t.read())
os.utime('text', ns=(5, 7)); print(os.stat('text').st_mtime_ns)
for call in (lambda: os.open('none', os.O_RDONLY), lambda: os.rmdir('copy'), lambda: os.mkdir('text')):
    try: call()
    except OSError as e: print(e)
db = sqlite3.connect('db'); db.execute('create table t(a integer primary key, b text)')
for n in range(200): db.execute('insert into t(b) values (?)', ('row %d' % n,))
db.commit(); db.execute('delete from t where a % 2'); db.commit()
print(db.execute('select count(*), max(b) from t').fetchone(), db.execute('pragma integrity_check').fetchone())
db.close(); print(sorted(os.listdir('.')))
def work(n):
    for k in range(50):
        with open('t%d' % n, 'a') as f: f.write('x')
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print([os.path.getsize('t%d' % n) for n in range(4)])
"#;
    place.compare("", &["python3", "-c", script, "{}"]);
}

#[test]
fn two_processes_share_a_database() {
    if !has("python3") {
        return;
    }
    let place = Place::new();
    let script = r#"
import os, sqlite3, subprocess, sys
os.chdir(sys.argv[1])
if len(sys.argv) > 2:
    db = sqlite3.connect('db', timeout=30)
    for n in range(10): db.execute('insert into t values (?, ?)', (sys.argv[2], n)); db.commit()
else:
    sqlite3.connect('db').execute('create table t (who text, n integer)')
    again = [sys.executable, '-c', open('/proc/self/cmdline').read().split('\0')[2], sys.argv[1]]
    both = [subprocess.Popen(again + [who]) for who in 'ab']
    print([one.wait() for one in both])
    db = sqlite3.connect('db')
    print(db.execute('select who, count(*), sum(n) from t group by who').fetchall())
    print(db.execute('pragma integrity_check').fetchone())
"#;
    place.compare("turns:", &["python3", "-c", script, "{}"]);
}

#[test]
fn git_keeps_a_repository() {
    if !has("git") {
        return;
    }
    let place = Place::new();
    let script = r#"
        export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a \
          GIT_COMMITTER_EMAIL=a@b GIT_AUTHOR_DATE='1 +0000' GIT_COMMITTER_DATE='2 +0000'
        cd "$1" && git init -q -b main . && cp "$2"/*.toml . && cp -r "$2"/tests . &&
        git add . && git commit -q -m one && echo more >>Cargo.toml && git status --short &&
        git commit -q -a -m two && git log --format=%H:%s && git repack -q -a -d && git fsck --strict &&
        git diff HEAD~ --stat && git checkout -q HEAD~ && tail -n 1 Cargo.toml && git ls-files | wc -l
    "#;
    let source = env!("CARGO_MANIFEST_DIR");
    place.compare("turns:", &["sh", "-c", script, "sh", "{}", source]);
}
