//! Programs that run under strace.

use super::*;
use std::fs::{self, File};
use std::process::Stdio;

/// Whether this machine traces; if not, the test is recorded as skipped.
#[track_caller]
fn traces(program: &str) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let run = |command: &mut Command| command.output().is_ok_and(|out| out.status.success());
    let file = dir.path().join("trace");
    if !run(&mut strace(&["true".into()], &file)) {
        skip::test("strace is missing, or ptrace is not allowed");
        return false;
    }
    if !run(Command::new(program).arg("--version")) {
        skip::test(&format!("{program} is missing"));
        return false;
    }
    true
}

struct Traced {
    run: Run,
    status: ExitStatus,
    printed: Vec<u8>,
    /// The directory afterwards.
    after: Tree,
}

/// Runs a command in a new directory under strace.
fn traced(command: &[&str], prepare: impl FnOnce(&Path)) -> Traced {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    prepare(&root);
    let command: Vec<OsString> = command.iter().map(OsString::from).collect();
    let out = dir.path().join("out");
    let (run, status) = record_with(&command, &root, &dir.path().join("run"), &mut |strace| {
        strace.current_dir(&root).stdin(Stdio::null());
        strace.stdout(File::create(&out).unwrap());
    })
    .unwrap();
    assert_eq!(Run::load(&dir.path().join("run")).unwrap(), run);
    Traced {
        run,
        status,
        printed: fs::read(&out).unwrap(),
        after: Tree::read_dir(&root, &mut 2).unwrap(),
    }
}

/// The run has made the directory as it is, and nothing is missing.
#[track_caller]
fn assert_complete(traced: &Traced) {
    assert!(traced.status.success(), "{}", traced.status);
    assert_eq!(traced.run.header.unseen, Vec::<String>::new());
    let mut tree = replayed(&traced.run);
    for (_, node) in tree.paths() {
        tree.get_mut(node).unwrap().xattrs.clear();
    }
    assert_eq!(tree.differences(&traced.after), []);
    assert_eq!(output(&traced.run), traced.printed);
}

#[test]
fn a_shell_script_with_pipes_and_redirections() {
    if !traces("bash") {
        return;
    }
    const SCRIPT: &str = r#"
        set -e
        umask 027
        mkdir -p a/b; (cd a/b; echo one >f; cat f f >>"$PWD/g")
        printf 'b\na\n' | sort >sorted; cat old sorted >all 2>&1
        ln -s a/b link; echo two >>link/f; ln all hard; ln -s missing dangling
        exec 5>held; echo first >&5; { echo child >&5; } & wait; echo last >&5; exec 5>&-
        dd if=/dev/zero of=block bs=1000 count=3 seek=2 conv=fsync 2>/dev/null
        mv all a/moved; cp -a a copy; rm -r a; mkfifo pipe; chmod 6711 sorted; touch empty
        tar cf t.tar copy; mkdir un; tar xf t.tar -C un; cp old /dev/null
        sync; truncate -s 5 old; echo done | tee said; test ! -e none
    "#;
    let traced = traced(&["bash", "-c", SCRIPT], |root| {
        fs::write(root.join("old"), [b'x'; 10_000]).unwrap();
    });
    assert_complete(&traced);
    assert!(traced.run.header.setup > 0);
    assert!(texts(&traced.run).contains(&"sync()"));
}

const PYTHON: &str = r#"
import os, threading, mmap
f = os.open("f", os.O_RDWR | os.O_CREAT, 0o644)
os.pwrite(f, b"abc", 5); os.writev(f, [b"x", b"yz"]); os.pwritev(f, [b"q"], 9)
os.ftruncate(f, 8192); os.truncate("f", 9000); os.posix_fallocate(f, 0, 10000)
os.fsync(f); os.fdatasync(f)
t = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600); os.write(t, b"tmp")
os.mknod("fifo", 0o10644); os.symlink("f", "l"); os.chmod("f", 0o4755)
os.sendfile(t, f, 0, 5); os.lseek(f, 3, 0); os.read(f, 2); os.dup2(t, 50)
os.mkdir("dd"); g = os.open("dd", os.O_RDONLY); os.fsync(g)
z = os.open("z", os.O_CREAT | os.O_WRONLY | os.O_SYNC, 0o666, dir_fd=g); os.write(z, b"zz")
os.rename("z", "y", src_dir_fd=g, dst_dir_fd=g); os.unlink("dd/y"); os.rmdir("dd")
lock = threading.Lock()
def work(n):
    for i in range(20):
        with open(f"t{n}-{i}", "w") as h: h.write("hello" * n * i)
        os.rename(f"t{n}-{i}", f"r{n}")
        with lock, open("log", "ab", 0) as log: log.write(b"%d " % n)
all = [threading.Thread(target=work, args=(n,)) for n in range(4)]
[x.start() for x in all]; [x.join() for x in all]
if os.fork() == 0:
    os.write(f, b"child"); os._exit(0)
os.wait(); os.write(f, b"parent")
m = mmap.mmap(f, 100, mmap.MAP_PRIVATE); m.close()
print("done", flush=True)
"#;

#[test]
fn a_program_with_threads_and_children() {
    if !traces("python3") {
        return;
    }
    let traced = traced(&["python3", "-c", PYTHON], |_| ());
    assert_complete(&traced);
    assert_eq!(traced.printed, b"done\n");
}

#[test]
fn stores_through_a_mapping_are_reported() {
    if !traces("python3") {
        return;
    }
    const SCRIPT: &str = r#"
import mmap, os
f = os.open("mapped", os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 4096)
m = mmap.mmap(f, 4096); m[0:4] = b"data"; m.flush(); m.close()
"#;
    let traced = traced(&["python3", "-c", SCRIPT], |_| ());
    let unseen = traced.run.header.unseen.join("\n");
    assert!(
        unseen.contains("stores through a shared mapping of 'mapped'"),
        "{unseen}"
    );
    assert!(
        unseen.contains("in the run, mapped has zeros in page 0"),
        "{unseen}"
    );
    assert!(
        texts(&traced.run)
            .iter()
            .any(|text| text.starts_with("fdatasync('mapped', "))
    );
}

const C: &str = r#"
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#define OK(x) if ((x) < 0) { perror(#x); return 1; }
int main(void) {
    int fd, dir, other, pipes[2];
    char path[64];
    OK(fd = open(".", O_TMPFILE | O_RDWR, 0600));
    OK(write(fd, "named later", 11));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (linkat(AT_FDCWD, path, AT_FDCWD, "late", AT_SYMLINK_FOLLOW)) perror("linkat");
    OK(mkdir("d", 0775)); OK(dir = open("d", O_DIRECTORY));
    OK(other = openat(dir, "e", O_CREAT | O_EXCL | O_WRONLY | O_APPEND, 0664));
    struct iovec parts[2] = {{"ab", 2}, {"cd", 2}};
    OK(pwritev(other, parts, 2, 100)); OK(dup3(other, 20, O_CLOEXEC)); OK(write(20, "\n\0\"", 3));
    OK(renameat2(dir, "e", AT_FDCWD, "d2", RENAME_NOREPLACE));
    OK(renameat2(AT_FDCWD, "d2", AT_FDCWD, "d", RENAME_EXCHANGE));
    OK(fallocate(20, FALLOC_FL_KEEP_SIZE, 0, 4096));
    OK(pipe(pipes)); OK(write(pipes[1], "piped", 5));
    OK(splice(pipes[0], NULL, fd, NULL, 0, 0));
    struct sockaddr_un name = {AF_UNIX, "sock"};
    int sock;
    OK(sock = socket(AF_UNIX, SOCK_STREAM, 0)); OK(bind(sock, (void *)&name, sizeof name));
    pid_t child;
    OK(child = vfork());
    if (child == 0) { execlp("touch", "touch", "d2/by-child", (char *)0); _exit(1); }
    wait(NULL);
    OK(fchdir(dir)); OK(symlink("../d", "up")); OK(close(creat("up.txt", 0400)));
    OK(close_range(3, ~0u, 0)); OK(fd = open("again", O_CREAT | O_WRONLY, 0600));
    return write(fd, "x", 1) != 1;
}
"#;

#[test]
fn a_program_in_c() {
    if !traces("cc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [source, program] = ["a.c", "a"].map(|name| dir.path().join(name));
    fs::write(&source, C).unwrap();
    let compiled = Command::new("cc")
        .arg("-o")
        .args([&program, &source])
        .status();
    assert!(compiled.unwrap().success());
    let traced = traced(&[program.to_str().unwrap()], |_| ());
    assert_complete(&traced);
    let tree = replayed(&traced.run);
    assert!(tree.resolve(b"d2/up.txt").is_some() && tree.resolve(b"sock").is_some());
}

#[test]
fn a_trace_in_a_file_with_a_copy_of_the_directory() {
    if !traces("bash") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [root, before, trace] = ["root", "before", "trace"].map(|name| dir.path().join(name));
    for copy in [&root, &before] {
        fs::create_dir(copy).unwrap();
        fs::write(copy.join("old"), "old").unwrap();
    }
    let script = "echo new >>old; mv old new; exit 3".into();
    let status = strace(&["bash".into(), "-c".into(), script], &trace)
        .current_dir(&root)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(3));
    let run = import_file(&trace, &root, Some(&before)).unwrap();
    let after = Tree::read_dir(&root, &mut 2).unwrap();
    assert_eq!(replayed(&run).differences(&after), []);
    assert_eq!(
        texts(&run),
        [
            "write('old', 3, 4 bytes)",
            "close('old')",
            "rename('old', 'new')"
        ]
    );
    let error = import_file(&dir.path().join("none"), &root, None).unwrap_err();
    assert!(error.to_string().contains("none: No such file"), "{error}");
}

#[test]
fn a_program_that_does_not_exist_is_an_error() {
    if !traces("bash") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let error = record(&["no-such-program-at-all".into()], dir.path(), &run).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("did not start 'no-such-program-at-all'"),
        "{error}"
    );
    fs::create_dir(&run).unwrap();
    fs::write(run.join("full"), "").unwrap();
    let error = record(&["true".into()], dir.path(), &run).unwrap_err();
    assert!(
        error.to_string().contains("the directory is not empty"),
        "{error}"
    );
}

#[test]
fn a_repository_of_git() {
    if !traces("bash") || !traces("git") {
        return;
    }
    const SCRIPT: &str = "set -e; export HOME=$PWD; export GIT_CONFIG_NOSYSTEM=1
        git init -q . 2>/dev/null; git config user.email a@b; git config user.name n
        git config core.fsync all; echo hi >f; git add .; git commit -qm one
        echo more >>f; git commit -qam two; git gc -q; git clone -q . clone";
    let traced = traced(&["bash", "-c", SCRIPT], |_| ());
    assert_complete(&traced);
    assert!(
        texts(&traced.run)
            .iter()
            .any(|text| text.starts_with("fsync('.git/objects/"))
    );
}

#[test]
fn changes_of_a_real_trace_are_an_error_or_a_run() {
    if !traces("bash") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trace");
    let script = "echo a >f; cat /dev/null <f | sort >g & wait; mv f g; echo b".into();
    let mut strace = strace(&["bash".into(), "-c".into(), script], &file);
    let ran = strace
        .current_dir(dir.path())
        .stderr(Stdio::null())
        .output();
    assert!(ran.unwrap().status.success());
    let trace = fs::read(&file).unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..100 {
        let mut changed = trace.clone();
        for _ in 0..50 {
            super::damaged::mutate(&mut changed, &mut random);
        }
        super::damaged::import_at(&changed, dir.path());
    }
}
