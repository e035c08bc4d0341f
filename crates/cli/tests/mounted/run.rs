//! Unmodified programs under `selvedge run`, beside a mount of the same store.

use crate::fixture::{Fixture, selvedge, stderr, stdout};
use crate::serve::{end, served, socket};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The library, which cargo builds with these tests.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let found = test.ancestors().skip(1).take(2);
    let mut found = found.map(|dir| dir.join("libselvedge_run.so"));
    found.find(|library| library.exists()).unwrap()
}

/// `selvedge run` of a shell with this script. `$1` is the directory of the store.
pub(crate) fn shell(place: &Fixture, options: &[&str], script: &str) -> Output {
    let mut command = selvedge();
    command
        .args(["run", "--store", socket(place), "--at", place.dir_str()])
        .arg("--library")
        .arg(library())
        .args(options)
        .args(["--", "bash", "-c", script, "bash", place.dir_str()]);
    command.output().unwrap()
}

/// The number of calls that `--stats` prints with this text.
fn count(output: &Output, text: &str) -> u64 {
    let stats = stderr(output);
    let line = stats.lines().find_map(|line| line.strip_suffix(text));
    let line = line.unwrap_or_else(|| panic!("no {text:?} in {stats}"));
    line.trim().parse().unwrap()
}

fn is_mounted(place: &Fixture) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.contains(&format!(" {} ", place.dir_str()))
}

#[test]
fn processes_of_a_run_and_a_mount_see_the_same_files() {
    let (place, server) = served(&[]);
    let script = r#"
        set -e
        cd "$1" && mkdir -p d/e && cp /bin/true d/program
        for n in 1 2 3 4; do (echo $n >d/f$n; (cat d/f$n >d/g$n; rm d/f$n)) & done; wait
        cat d/g? && d/program
        (exec 5>kept; echo one >&5; sh -c 'echo two >&5'; (echo three >&5)); cat kept
        tar -cf - d | tar -C d/e -xf - && diff -r d/e/d d -x e && git init -q d/repo &&
            cp kept d/repo && git -C d/repo add . && git -C d/repo -c user.name=a -c user.email=a \
            commit -qm one && git clone -q d/repo clone && git -C clone fsck && cat clone/kept
        python3 - <<'END'
import fcntl, os, subprocess
file = open('before', 'w')
os.rename('before', 'after')
fcntl.flock(file, fcntl.LOCK_EX)
print(subprocess.call(['flock', '-n', 'after', 'true']))
os.unlink('after')
nameless = open('gone', 'w')
os.unlink('gone')
fcntl.flock(nameless, fcntl.LOCK_EX)
END
    "#;
    let output = shell(&place, &["--stats"], script);
    assert!(output.status.success(), "{}", stderr(&output));
    let kept = "one\ntwo\nthree\n";
    assert_eq!(stdout(&output), format!("1\n2\n3\n4\n{kept}{kept}1\n"));
    assert!(count(&output, "  answered in the process") > 1000);
    assert_eq!(count(&output, "  to the mount: programs executed"), 1);
    assert!(!is_mounted(&place));
    end(&place, server);
    place.mount(&["-o", "ro"]);
    assert_eq!(
        fs::read_to_string(place.dir().join("clone/kept")).unwrap(),
        kept
    );
    let listed = Command::new("ls").arg(place.dir()).output().unwrap();
    assert_eq!(stdout(&listed), "clone\nd\nkept\n");
}

/// The command that has mounted the store ends first. The other one still executes programs of the store.
#[test]
fn a_command_does_not_unmount_under_another_one() {
    let (place, server) = served(&[]);
    let mut first = selvedge();
    first.args(["run", "--store", socket(&place), "--at", place.dir_str()]);
    first
        .arg("--library")
        .arg(library())
        .args(["--", "sleep", "1"]);
    let mut first = first.stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while !is_mounted(&place) {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
    }
    let script = r#"cp /bin/true "$1/program" && sleep 2 && "$1/program" && echo ran"#;
    let output = shell(&place, &[], script);
    assert_eq!(stdout(&output), "ran\n", "{}", stderr(&output));
    assert!(first.wait().unwrap().success());
    assert!(is_mounted(&place));
    crate::fixture::run(0, &["umount", place.dir_str()]);
    end(&place, server);
}

/// The write-ahead log needs memory that processes share, which only the mount has.
#[test]
fn two_processes_of_a_run_share_a_database_with_a_mount() {
    let (place, server) = served(&[]);
    crate::fixture::run(0, &["mount", socket(&place), place.dir_str()]);
    let script = r#"
        python3 - "$1/db" <<'END'
import fcntl, mmap, sqlite3, subprocess, sys
locked = open(sys.argv[1] + '.locked', 'w+b', buffering=0)
locked.write(bytes(4096))
fcntl.lockf(locked, fcntl.LOCK_EX)
fcntl.flock(locked, fcntl.LOCK_EX)
mapped = mmap.mmap(locked.fileno(), 4096)
take = 'import fcntl, sys; fcntl.lockf(open(sys.argv[1], "r+"), fcntl.LOCK_EX | fcntl.LOCK_NB)'
taken = subprocess.run([sys.executable, '-c', take, locked.name], stderr=subprocess.PIPE)
print(b'BlockingIOError' in taken.stderr)
work = '''
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
for n in range(30):
    db.execute('begin immediate')
    db.execute('insert into t select count(*) + 1, ? from t', sys.argv[2])
    db.execute('commit')
'''
db = sqlite3.connect(sys.argv[1])
print(db.execute('pragma journal_mode=wal').fetchone()[0])
db.execute('create table t (n integer primary key, who text)')
both = [subprocess.Popen([sys.executable, '-c', work, sys.argv[1], who]) for who in 'ab']
print([one.wait() for one in both])
END
    "#;
    let output = shell(&place, &["--stats"], script);
    assert_eq!(
        stdout(&output),
        "True\nwal\n[0, 0]\n",
        "{}",
        stderr(&output)
    );
    assert!(count(&output, "  to the mount: shared mappings") > 0);
    let look = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); \
         print(db.execute('select count(*), max(n) from t').fetchone(), \
         db.execute('pragma integrity_check').fetchone())";
    let seen = Command::new("python3")
        .args(["-c", look])
        .arg(place.dir().join("db"))
        .output()
        .unwrap();
    assert_eq!(stdout(&seen), "(60, 60) ('ok',)\n", "{}", stderr(&seen));
    assert!(is_mounted(&place), "the user's mount stays");
    place.umount();
    end(&place, server);
}

/// All processes of a run see the stores to a shared mapping, and a mapping shows the writes of all.
#[test]
fn shared_mappings_and_calls_agree() {
    let (place, server) = served(&[]);
    let script = r#"
        python3 - "$1" <<'END'
import fcntl, mmap, os, subprocess, sys
os.chdir(sys.argv[1])
def elsewhere(code):
    subprocess.run([sys.executable, '-c', 'import mmap, os; ' + code], check=True)
fd = os.open('file', os.O_RDWR | os.O_CREAT)
os.write(fd, bytes(16384))
fcntl.lockf(fd, fcntl.LOCK_EX)
m = mmap.mmap(fd, 16384)
seen = m[:8] + m[4096:4104] + m[8192:8200]
os.pwrite(fd, b'by call', 4096)
print(m[4096:4103])
elsewhere("f = open('file', 'r+b'); f.seek(8192); f.write(b'by another')")
print(m[8192:8202])
with open('file', 'ab') as f: f.write(b'appended')
os.lseek(fd, 0, os.SEEK_SET)
m[0:6] = b'stored'
print(os.read(fd, 6), open('file', 'rb').read(6), os.fstat(fd).st_size)
m[100:106] = b'stored'
elsewhere("print(os.pread(os.open('file', 0), 6, 100))")
private = mmap.mmap(fd, 4096, access=mmap.ACCESS_COPY)
print(private[100:106])
os.preadv(fd, [memoryview(bytearray(10)), memoryview(bytearray(10))], 0)
os.ftruncate(fd, 4096)
os.ftruncate(fd, 16384)
print(m[4096:4103], m[0:6])
elsewhere("os.truncate('file', 0); os.truncate('file', 16384)")
print(m[0:6], os.pread(fd, 6, 0))
m[0:6] = b'stored'
elsewhere("f = open('file', 'wb'); f.truncate(16384)")
print(m[0:6], os.pread(fd, 6, 0))
os.ftruncate(fd, 20480)
grown = mmap.mmap(fd, 20480)
os.pwrite(fd, b'at the end', 20470)
print(grown[20470:])
take = 'import fcntl; fcntl.lockf(open("file", "r+"), fcntl.LOCK_EX | fcntl.LOCK_NB)'
fcntl.lockf(fd, fcntl.LOCK_EX)
os.pwrite(fd, b'x', 0)
taken = subprocess.run([sys.executable, '-c', take], stderr=subprocess.PIPE)
print(b'BlockingIOError' in taken.stderr)
os.rename('file', 'moved')
os.pwrite(fd, b'moved', 0)
print(m[:5])
os.unlink('moved')
os.pwrite(fd, b'gone!', 0)
print(m[:5])
END
    "#;
    let output = shell(&place, &["--stats"], script);
    let expected = "b'by call'
b'by another'
b'stored' b'stored' 16392
b'stored'
b'stored'
b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00' b'stored'
b'\\x00\\x00\\x00\\x00\\x00\\x00' b'\\x00\\x00\\x00\\x00\\x00\\x00'
b'\\x00\\x00\\x00\\x00\\x00\\x00' b'\\x00\\x00\\x00\\x00\\x00\\x00'
b'at the end'
True
b'moved'
b'gone!'
";
    assert_eq!(stdout(&output), expected, "{}", stderr(&output));
    end(&place, server);
}

/// `fsync` writes what was stored in a mapping, so that other clients see it.
#[test]
fn fsync_writes_what_a_mapping_stored() {
    let (place, server) = served(&[]);
    let other = tempfile::tempdir().unwrap();
    let other_str = other.path().to_str().unwrap();
    crate::fixture::run(0, &["mount", socket(&place), other_str]);
    let script = format!(
        r#"
        python3 - "$1/file" <<'END'
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 4096)
m = mmap.mmap(fd, 4096)
m[:6] = b'stored'
os.fsync(fd)
print(open('{other_str}/file', 'rb').read(6))
END
    "#
    );
    let output = shell(&place, &[], &script);
    let unmounted = Command::new("umount").arg(other.path()).status().unwrap();
    assert_eq!(stdout(&output), "b'stored'\n", "{}", stderr(&output));
    assert!(unmounted.success());
    end(&place, server);
}

/// Appends of a mount and of processes of two runs, at once. The kernel of the mount has an old size of the file.
#[test]
fn appends_of_several_clients_follow_each_other() {
    let (place, server) = served(&[]);
    let other = tempfile::tempdir().unwrap();
    let other_str = other.path().to_str().unwrap();
    crate::fixture::run(0, &["mount", socket(&place), other_str]);
    let log = other.path().join("log");
    let mut mounted = fs::File::options()
        .create(true)
        .append(true)
        .open(&log)
        .unwrap();
    let in_a_run = |who: &str| {
        let script = format!(r#"for n in $(seq 300); do echo {who} $n; done >>"$1/log""#);
        let output = shell(&place, &["--no-mount"], &script);
        assert!(output.status.success(), "{}", stderr(&output));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| in_a_run("a"));
        scope.spawn(|| in_a_run("b"));
        for n in 1..=300 {
            mounted.write_all(format!("m {n}\n").as_bytes()).unwrap();
        }
    });
    drop(mounted);
    let text = fs::read_to_string(&log).unwrap();
    for who in ["a", "b", "m"] {
        let mine = text
            .lines()
            .filter_map(|line| line.strip_prefix(&format!("{who} ")[..]));
        let numbers: Vec<u32> = mine.map(|n| n.parse().unwrap()).collect();
        assert_eq!(numbers, (1..=300).collect::<Vec<_>>(), "{who}");
    }
    let unmounted = Command::new("umount").arg(other.path()).status().unwrap();
    assert!(unmounted.success());
    end(&place, server);
}

/// A static program uses the descriptors that it inherits, and shares their offsets with the others.
#[test]
fn programs_without_the_library_use_descriptors_of_the_store() {
    let (place, server) = served(&[]);
    let tools = tempfile::tempdir().unwrap();
    let (code, copy) = (tools.path().join("copy.c"), tools.path().join("copy"));
    // Copies its input, or one line of it; or executes a program in another directory.
    let text = r#"
        #include <unistd.h>
        int main(int argc, char **argv) {
            char c;
            if (argc > 3)
                return chdir(argv[1]) != 0 || execv(argv[2], argv + 2) != 0;
            while (read(0, &c, 1) == 1)
                if (write(1, &c, 1) != 1 || (argc > 1 && c == '\n'))
                    break;
        }
    "#;
    fs::write(&code, text).unwrap();
    let mut gcc = Command::new("gcc");
    let built = gcc.args(["-static", "-o"]).arg(&copy).arg(&code).status();
    assert!(built.unwrap().success());
    let script = format!(
        r#"
        cd "$1" && printf '1\n2\n3\n' >lines && copy={}
        $copy <lines >copied && cat copied
        (echo first; $copy <lines; echo last) >around && cat around
        (read -r a; $copy one; $copy one; read -r b; echo "$a $b.") <lines
        $copy <lines >>around && echo appended >>around && tail -n 3 around
        python3 - $copy <<'END'
import os, subprocess, sys
with open('out', 'w') as out, open('lines') as lines:
    out.write('before\n')
    out.flush()
    print(lines.fileno() > 0, os.read(lines.fileno(), 2))
    subprocess.run([sys.argv[1], 'one'], stdin=lines, stdout=out, check=True)
    print(os.read(lines.fileno(), 2), os.lseek(lines.fileno(), 0, os.SEEK_CUR))
    out.write('after\n')
print(open('out').read())
END
        bash -c '$0 <&5' $copy 5<lines | wc -l
        echo outside >{tools}/here; echo inside >here; $copy {tools} /bin/cat here
        for n in 1 2 3; do $copy / /bin/sh -c true; done 7<lines; cat here
        chmod -x $copy; $copy <lines 2>/dev/null || cat <lines; chmod +x $copy
    "#,
        copy.display(),
        tools = tools.path().display()
    );
    let output = shell(&place, &[], &script);
    let expected = "1\n2\n3\nfirst\n1\n2\n3\nlast\n2\n3\n1 .\n2\n3\nappended\n\
        True b'1\\n'\nb'3\\n' 6\nbefore\n2\nafter\n\n3\noutside\ninside\n1\n2\n3\n";
    assert_eq!(stdout(&output), expected, "{}", stderr(&output));
    let output = shell(
        &place,
        &["--no-mount"],
        &format!("{} <\"$1/lines\"", copy.display()),
    );
    assert_eq!(stdout(&output), "");
    end(&place, server);
}

/// A lock of `flock` belongs to the description, which the shell has, too.
#[test]
fn a_lock_of_a_description_ends_with_it() {
    let (place, server) = served(&[]);
    let script = r#"
        cd "$1" && try() { flock -n "$1" true && echo free || echo held; }
        exec 9>lock && flock 9 && try lock && flock -n 9 && try lock
        (sleep 0.2) && try lock && exec 8>&9 9>&- && try lock && flock -u 8 && try lock
        flock 8 && try lock && exec 8>&- && try lock
        (flock 7 && sleep 0.5 && echo first >>order) 7>other & sleep 0.2
        (flock 7 && echo second >>order) 7>other && wait && cat order
        bash -c 'exec 9>killed && flock 9 && flock -n killed true || kill -9 $$' 2>/dev/null; sleep 0.5; try killed
        exec 6>kept && flock 6 && exec bash -c 'flock -n kept true && echo free || echo held'
    "#;
    let output = shell(&place, &[], script);
    let expected = "held\nheld\nheld\nheld\nfree\nheld\nfree\nfirst\nsecond\nfree\nheld\n";
    assert_eq!(stdout(&output), expected, "{}", stderr(&output));
    end(&place, server);
}

/// A loader that cannot load the library does not get it.
#[test]
fn a_program_with_another_loader_uses_the_mount() {
    let (place, server) = served(&[]);
    let script = r#"
        cd "$1" && cp /lib64/ld-linux-x86-64.so.2 "$2/other-loader" && cd "$2" &&
        printf '#include <stdio.h>\n#include <stdlib.h>\nint main() { puts(getenv("LD_PRELOAD")); fflush(stdout);
            return !freopen("written", "w", stdout) || puts("text") < 0; }' >p.c &&
        gcc -o p p.c -Wl,--dynamic-linker="$2/other-loader" && cd "$1" && "$2/p" && cat written
    "#;
    let tools = tempfile::tempdir().unwrap();
    let script = script.replace("$2", tools.path().to_str().unwrap());
    let output = shell(&place, &[], &script);
    assert_eq!(stdout(&output), "\ntext\n", "{}", stderr(&output));
    let mut command = selvedge();
    command
        .args(["run", "--store", socket(&place), "--at", place.dir_str()])
        .arg("--library")
        .arg(library())
        .arg("--")
        .arg(tools.path().join("p"))
        .current_dir(tools.path());
    let output = command.output().unwrap();
    assert_eq!(
        stdout(&output),
        "\n",
        "the first program: {}",
        stderr(&output)
    );
    end(&place, server);
}

/// Descriptors of the library have numbers below a low limit, too.
#[test]
fn a_program_may_have_a_low_limit_of_descriptors() {
    let (place, server) = served(&[]);
    let script = r#"cd "$1" && (ulimit -n 24; echo text >file; sh -c 'exec 5<file; cat <&5')"#;
    let output = shell(&place, &["--no-mount"], script);
    assert_eq!(stdout(&output), "text\n", "{}", stderr(&output));
    end(&place, server);
}

#[test]
fn a_run_without_a_mount_or_a_service() {
    let (place, server) = served(&[]);
    let output = shell(
        &place,
        &["--no-mount"],
        r#"echo text >"$1/file"; cat "$1"/*; exit 7"#,
    );
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert_eq!(stdout(&output), "text\n");
    assert!(fs::read_dir(place.dir()).unwrap().next().is_none());
    end(&place, server);
    let output = shell(&place, &[], "true");
    assert!(!output.status.success());
    assert!(stderr(&output).contains("socket"), "{}", stderr(&output));
}

/// A fork sends the changes. Its message about an error must not wait for locks that libc holds meanwhile.
#[test]
fn a_fork_after_the_end_of_the_service_goes_on() {
    let (place, mut server) = served(&[]);
    let script = format!(
        r#"export LC_ALL=C.UTF-8
        timeout -s KILL 60 bash -c 'echo text >"$0/file"; kill -9 {}; for n in 1 2 3; do (true); done
            cat "$0/file" || echo gone' "$1""#,
        server.pid()
    );
    let output = shell(&place, &["--no-mount"], &script);
    assert_eq!(stdout(&output), "gone\n", "{}", stderr(&output));
    let lost = "are lost (errno 5)";
    assert!(stderr(&output).contains(lost), "{}", stderr(&output));
    assert_eq!(server.wait(), None);
    place.fsck();
}
