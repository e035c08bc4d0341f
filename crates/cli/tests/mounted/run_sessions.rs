//! Sessions of programs under `selvedge run`: they end with their process, and a process that has lost its own gets
//! another one.

use crate::fixture::{selvedge, stderr, stdout};
use crate::run::{library, shell};
use crate::serve::{end, served, socket};

/// A program that was stopped for longer than the lease of its session goes on, and learns of lost changes.
#[test]
fn a_stopped_program_goes_on() {
    let (place, server) = served(&[]);
    let script = r#"
        cd "$1" && python3 - <<'END'
import os, subprocess, time

def stop(after, wait):
    pid = os.getpid()
    text = f'sleep {after}; kill -STOP {pid}; sleep 12; kill -CONT {pid}'
    child = subprocess.Popen(['sh', '-c', text], cwd='/')
    if wait:
        child.wait()
    return child

kept = open('kept', 'w')
kept.write('one')
kept.flush()
stop(0, True)
kept.write(' two')
kept.flush()
print(open('kept').read())
open('new', 'w').write('text')
print(sorted(os.listdir('.')))
os.mkdir('sub')
stop(0, True)
print(subprocess.run(['pwd'], cwd='sub', stdout=subprocess.PIPE).stdout.endswith(b'/sub\n'))
source = open('/tmp/' + str(os.getpid()), 'w+')
source.write('0123456789')
source.flush()
source.seek(0)
target = open('target', 'w')
target.write('target ')
target.flush()
stop(0, True)
print(os.sendfile(target.fileno(), source.fileno(), None, 10), open('target').read())
os.unlink(source.name)
os.mkdir('all')
child, made, errors = stop(0.3, False), [], []
while child.poll() is None:
    name = f'all/{len(made)}'
    try:
        os.mkdir(name)
        made.append(name)
    except OSError as error:
        errors.append(error.errno)
    time.sleep(0.0005) # so that there are hundreds of directories at the stop, and not many thousands
def exists(name):
    try:
        return os.stat(name) is not None
    except FileNotFoundError:
        return False
    except OSError as error: # the first call after the stop
        errors.append(error.errno)
        return exists(name)
missing = [name for name in made if not exists(name)]
if missing and not errors:
    print('silently lost:', missing[0], 'to', missing[-1], 'of', len(made))
print(set(errors) <= {5}, len(errors) < 2)
END
    "#;
    let output = shell(&place, &[], script);
    let expected = "one two\n['kept', 'new']\nTrue\n10 target 0123456789\nTrue True\n";
    assert_eq!(stdout(&output), expected, "{}", stderr(&output));
    end(&place, server);
}

/// A program is stopped in the middle of a write, and its file is removed when its lease is over. It then goes on with the
/// write, and hits none of the files that have taken the space.
#[test]
fn a_stopped_write_reaches_no_other_file() {
    let (place, server) = served(&["--lease", "1"]);
    let script = r#"
        cd "$1" && python3 - <<'END'
import os, signal, subprocess, time

write = """
import os
file, text = os.open('written', os.O_RDWR | os.O_CREAT), b'w' * (2 << 20)
while True:
    os.ftruncate(file, 0)
    for n in range(10):
        os.pwrite(file, text, n * len(text))
"""
for _ in range(2):
    writer = subprocess.Popen(['python3', '-c', write], stderr=subprocess.DEVNULL)
    time.sleep(1)
    writer.send_signal(signal.SIGSTOP)
    time.sleep(2.5)
    os.remove('written')
    os.sync()
    other = open('other', 'wb', buffering=0)
    try:
        while True:
            other.write(b'o' * (1 << 20))
    except OSError:
        pass
    writer.send_signal(signal.SIGCONT)
    writer.wait()
    found = open('other', 'rb').read()
    print(len(found) > 1 << 20, found.count(b'w'))
    os.remove('other')
END
    "#;
    let output = shell(&place, &["--no-mount"], script);
    assert_eq!(stdout(&output), "True 0\nTrue 0\n", "{}", stderr(&output));
    end(&place, server);
}

/// The session of a process ends with it, though a child goes on: others get its locks at once.
#[test]
fn a_child_keeps_no_session_of_its_parent() {
    let (place, server) = served(&[]);
    let script = r#"
        cd / && python3 - "$1/file" <<'END'
import os, sys

def sockets():
    paths = [f'/proc/self/fd/{fd}' for fd in os.listdir('/proc/self/fd')]
    return sum(os.path.exists(path) and os.readlink(path).startswith('socket') for path in paths)

before = sockets()
file = open(sys.argv[1], 'w')
print(sockets() > before)
if os.fork() == 0:
    print(sockets() == before)
    file.write('text')
    file.close()
    sys.stdout.flush()
    os._exit(0)
os.wait()
END
        cat "$1/file"
    "#;
    let output = shell(&place, &[], script);
    let mut lines: Vec<_> = stdout(&output).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["True", "True", "text"], "{}", stderr(&output));
    end(&place, server);
}

/// A process that has not used its descriptor of a removed file does not write into the one that got its number.
#[test]
fn a_descriptor_does_not_lead_to_another_file() {
    let (place, server) = served(&[]);
    let script = r#"
        go=$(mktemp -u) && mkfifo "$go" && cd "$1" && mkdir d
        bash -c 'read line <"$0"; exec date' "$go" >out 2>/dev/null &
        sh -c 'rm out; for n in $(seq 200); do echo kept >d/$n; done'
        echo >"$go"
        wait
        rm "$go"
        grep -L '^kept' d/*
        echo done
    "#;
    let output = shell(&place, &[], script);
    assert_eq!(stdout(&output), "done\n", "{}", stderr(&output));
    end(&place, server);
}

/// Neither a child nor a new program, which have not used their working directory yet, make a name in the directory that
/// has got its number.
#[test]
fn a_working_directory_does_not_lead_to_another_one() {
    let (place, server) = served(&[]);
    let script = r#"
        cd "$1" && python3 - <<'END'
import os, subprocess

os.mkdir('gone')
number = os.stat('gone').st_ino
program = subprocess.Popen(['split', '-', 'stray'], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd='gone')
go, start = os.pipe()
os.chdir('gone')
child = os.fork()
if child == 0:
    os.read(go, 1)
    try:
        open('stray', 'w')
    except FileNotFoundError:
        os._exit(0)
    os._exit(1)
os.chdir('..')
subprocess.run(['sh', '-c', 'rmdir gone; for n in $(seq 200); do mkdir other-$n; done'])
others = [f'other-{n}' for n in range(1, 201)]
print(number in [os.stat(other).st_ino for other in others])
os.write(start, b'.')
print(os.waitpid(child, 0)[1])
program.communicate(b'text')
print(program.returncode)
print([os.listdir(other) for other in others if os.listdir(other)])
END
    "#;
    let output = shell(&place, &["--no-mount"], script);
    assert_eq!(stdout(&output), "True\n0\n1\n[]\n", "{}", stderr(&output));
    end(&place, server);
}

/// Children that share the memory leave no references to their working directories: numbers of inodes come back.
#[test]
fn directories_of_children_are_freed() {
    let (place, server) = served(&[]);
    let script = r#"
        cd "$1" && python3 - <<'END'
import os, subprocess

numbers = set()
for _ in range(300):
    os.mkdir('job')
    numbers.add(os.stat('job').st_ino)
    try:
        subprocess.run(['/none'], cwd='job')
    except FileNotFoundError:
        os.rmdir('job')
print(len(numbers) < 250)
END
    "#;
    let output = shell(&place, &[], script);
    assert_eq!(stdout(&output), "True\n", "{}", stderr(&output));
    end(&place, server);
}

#[test]
fn a_run_inside_of_a_run_is_refused() {
    let (place, server) = served(&[]);
    let inner = selvedge().get_program().to_owned().into_string().unwrap();
    let script = format!(
        "mkdir \"$1/inner\" && {inner} run --no-mount --store {} --at \"$1/inner\" --library {} true",
        socket(&place),
        library().display(),
    );
    let output = shell(&place, &["--no-mount"], &script);
    let text = stderr(&output);
    assert!(text.contains("a program of another run"), "{text}");
    assert!(!output.status.success());
    end(&place, server);
}
