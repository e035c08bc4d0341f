//! Programs of several users under `selvedge run`: each call has the result that it has on a file system of the
//! kernel, on images and on protected stores, by clients of all classes.

use crate::fixture::{Fixture, run, selvedge, stderr, stdout};
use crate::run::library;
use crate::serve::{end, serve, socket};
use std::fs;
use std::path::Path;
use std::process::Command;

const NOBODY: u32 = 65534;

/// Makes files of several users below `$1`.
const PREPARE: &str = r#"
    set -e
    umask 022; cd "$1"
    mkdir public private searched sticky
    echo public >public/file; echo secret >private/file; chmod 700 private
    echo inside >searched/file; chmod 711 searched
    echo group >group; chgrp 65534 group; chmod 640 group
    echo denied >denied; chgrp 65534 denied; chmod 604 denied
    echo mine >mine; chown 65534 mine; chmod 600 mine
    chmod 1777 sticky; echo root >sticky/root
    for user in 0 65534; do mkdir own$user; chown $user:$user own$user; done
"#;

/// Calls of a user below `$1`, in the user's own directory and in those of others.
const WORK: &str = r#"
    umask 022; cd "$1"; own=own$(id -u); exec 2>&1
    cat public/file private/file group denied mine searched/file
    ls -A . private searched $own
    echo more >>public/file; echo more >>group; echo new >public/new; : >private/file
    echo one >$own/one && mkdir $own/dir && cp -r public $own/copy && mv $own/one $own/dir/two
    chmod 600 $own/dir/two; stat -c '%a %u %n' $own/dir/two; ln $own/dir/two $own/hard
    ln -s ../private/file $own/soft; cat $own/soft $own/hard
    rm -f sticky/root; echo own >sticky/$own && rm sticky/$own
    chmod 755 private; chown 1 $own/hard; chmod 700 $own; (cd $own && pwd && ls -A)
    # A descriptor permits what the mode does not.
    exec 5<>$own/open; echo text >&5; chmod 000 $own/open; echo more >&5; sh -c 'echo child >&5'
    exec 5>&-; chmod 600 $own/open; cat $own/open
    python3 - $own <<'END'
import os, sys
os.chdir(sys.argv[1])
for mode in 0o444, 0o400, 0:
    fd = os.open('made', os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
    print(os.write(fd, b'contents'), os.pread(fd, 99, 0), os.ftruncate(fd, 3), os.fstat(fd).st_size)
    os.close(fd)
    print(open('made', 'rb').read() if os.access('made', os.R_OK) else 'denied')
    os.unlink('made')
dir = os.open('listed', os.O_RDONLY) if os.mkdir('listed') is None else None
open('listed/name', 'w').close()
os.chmod('listed', 0)
print(os.listdir(dir))
os.chmod('listed', 0o700)
for path in '../denied', '../mine', '../private/file':
    try: os.truncate(path, 0)
    except OSError as e: print(e)
END
    tar -cf $own/tar -C public . && tar -xf $own/tar -C $own/dir && cat $own/dir/file
    for n in 1 2 3 4 5 6 7; do cat $own/dir/file; done >$own/many; cksum <$own/many
    test -r private; echo $?; test -w public; echo $?; test -x searched; echo $?
    find . -type f 2>&1 | sort; rm -r $own/*; ls -A $own; rmdir $own; mkdir new; rmdir new
"#;

/// Runs a script of a user under `selvedge run`, or below another directory.
fn script(place: &Fixture, user: u32, of_store: bool, script: &str) -> String {
    let dir = match of_store {
        true => place.dir(),
        false => place.path("plain"),
    };
    let (id, dir) = (user.to_string(), dir.to_str().unwrap());
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
    if of_store {
        command.arg(selvedge().get_program());
        command.args(["run", "--no-mount", "--store", socket(place), "--at", dir]);
        command.arg("--library").arg(library()).arg("--");
    }
    command.args(["bash", "-c", script, "bash", dir]);
    let output = finish_any(&mut command);
    output.replace(dir, "@")
}

/// The output of a script, whose last command may fail.
fn finish_any(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(stderr(&output), "");
    stdout(&output)
}

fn compare(make: &[&str]) {
    let place = Fixture::new();
    run(0, &[make, &[place.image_str()]].concat());
    fs::create_dir(place.path("plain")).unwrap();
    let server = serve(&place, &[]);
    for of_store in [false, true] {
        assert_eq!(script(&place, 0, of_store, PREPARE), "");
    }
    for user in [NOBODY, 0] {
        let [wanted, found] = [false, true].map(|of| script(&place, user, of, WORK));
        for (n, (wanted, found)) in wanted.lines().zip(found.lines()).enumerate() {
            assert_eq!(wanted, found, "line {n} of user {user}, {make:?}");
        }
        assert_eq!(wanted, found);
    }
    end(&place, server);
}

/// Whether another user can run the program and the library.
fn is_possible() -> bool {
    let library = library();
    let can_read = |path: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        let read = command.args(["test", "-r"]).arg(path).status();
        read.is_ok_and(|status| status.success())
    };
    let is_possible = can_read(Path::new(selvedge().get_program())) && can_read(&library);
    if !is_possible {
        skip::test("other users cannot read the program that is tested");
    }
    is_possible
}

#[test]
fn users_of_a_protected_store_get_the_results_of_linux() {
    if is_possible() {
        compare(&["mkfs", "--type", "pxfs", "--protect", "--size", "16M"]);
    }
}

#[test]
fn users_of_an_image_get_the_results_of_linux() {
    if is_possible() {
        compare(&["mkfs", "--type", "pxfs", "--size", "64M"]);
    }
}
