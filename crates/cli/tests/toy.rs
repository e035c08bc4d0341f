//! An engine that this file adds to the list, by one line, is there in every command. The
//! test runs itself as the program: with [`MARK`] in the environment it is `selvedge`.

use bpfs::{BpfsSystem, Mode};
use clap::{Arg, ArgMatches, Command as Arguments};
use engine::{
    Calls, Checked, Engine, Error, Explored, Graph, Identity, Image, Info, Interposer, Magic,
    MountRequest, Opened, Prepared, Result, Scratch, ScratchKind, ScratchOptions, Selection, Verb,
};
use medium::Pmem;
use oracle::{ModelFs, ModelOptions};
use serde_json::{Map, json};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, ExitCode, Output};
use std::sync::Arc;
use vfs::check::Report;
use vfs::{Clock, FileSystem, Guarantees, System};

/// Makes this file the program.
const MARK: &str = "SELVEDGE_TOY";

const MAGIC: &[u8] = b"toy file system";

/// A file system that has images with a magic number, and keeps everything in memory.
struct ToyEngine;

impl Engine for ToyEngine {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn about(&self) -> &'static str {
        "a toy"
    }

    fn magic(&self) -> Option<Magic> {
        Some(Magic {
            offset: 4096,
            bytes: MAGIC,
            name: "a toy file system",
        })
    }

    fn modes(&self) -> Vec<&'static str> {
        vec!["plush"]
    }

    fn guarantees(&self) -> Result<Vec<Guarantees>> {
        let mut promised = ModelFs::default().guarantees();
        promised.name = "toy (mode=plush)".into();
        Ok(vec![promised])
    }

    fn options(&self, verb: Verb) -> Arguments {
        let command = Arguments::new("toy");
        match verb {
            Verb::Mkfs | Verb::Mount => {
                let fur = Arg::new("fur").long("fur").value_name("COLOUR");
                command.arg(fur.help("Colour of the fur"))
            }
            Verb::Fsck | Verb::CrashTest | Verb::Graph | Verb::Serve => command,
        }
    }

    fn mkfs(&self, image: &Image, _identity: &Identity, options: &ArgMatches) -> Result<String> {
        let file = File::options().write(true).open(&image.path);
        let written = file.and_then(|file| file.write_all_at(MAGIC, 4096));
        written.map_err(|e| Error::about(&image.path, e))?;
        let fur = options.get_one::<String>("fur");
        Ok(format!("toy, fur {}", fur.map_or("brown", String::as_str)))
    }

    fn mount(
        &self,
        request: &MountRequest,
        options: &ArgMatches,
        _between: Option<&mut dyn Interposer>,
    ) -> Result<Prepared> {
        let fur = options.get_one::<String>("fur").cloned();
        Ok(Prepared {
            source: request.image.path.display().to_string(),
            draws: false,
            shared: false,
            open: Box::new(move || {
                Ok(Opened {
                    fs: Arc::new(ModelFs::default()),
                    durability: None,
                    about: Map::from_iter([("type".into(), "toy".into())]),
                    stats: None,
                    notes: vec![format!("fur: {}", fur.unwrap_or_default())],
                    close: Box::new(|| Ok(())),
                    draw: None,
                })
            }),
        })
    }

    fn check(&self, _image: &Image, _repair: bool, _options: &ArgMatches) -> Result<Checked> {
        Ok(Checked {
            replayed: None,
            marks: engine::Marks::default(),
            reclaimed: false,
            report: Report::default(),
            leaks_go_by: "nobody",
        })
    }

    fn info(&self, _image: &Image) -> Result<Info> {
        Ok(Info {
            lines: vec![("type", "toy, stuffed".into())],
            json: json!({"type": "toy"}),
        })
    }

    fn dump(&self, _image: &Image, _what: &Selection, out: &mut dyn Write) -> Result<()> {
        writeln!(out, "cotton").map_err(Error::new)
    }

    fn has_graph(&self) -> bool {
        true
    }

    fn graph(&self, calls: &Calls<'_>, _options: &ArgMatches) -> Result<Graph> {
        let fs = ModelFs::default();
        calls(&fs)?;
        Ok(Graph {
            svg: format!("<svg>{}</svg>", fs.inodes() - 1), // without the root
            dot: String::new(),
            json: json!({}),
        })
    }

    fn subject(&self, _options: &ArgMatches) -> Result<Explored> {
        let system = ToySystem(BpfsSystem(Mode::Log));
        Ok(Explored::Memory(Box::new(system)))
    }

    fn subjects(&self) -> Vec<Explored> {
        self.subject(&ArgMatches::default()).into_iter().collect()
    }

    fn scratch(&self) -> Option<ScratchKind> {
        Some(ScratchKind::Own)
    }

    fn fresh(
        &self,
        _scratch: Scratch,
        options: &ScratchOptions<'_>,
    ) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(ModelFs::new(ModelOptions {
            clock: options.clock.clone(),
            ..ModelOptions::default()
        })))
    }
}

/// For the explorer: BPFS under another name.
struct ToySystem(BpfsSystem);

impl System<dyn Pmem> for ToySystem {
    fn id(&self) -> String {
        "toy-plush".into()
    }

    fn image_bytes(&self) -> u64 {
        self.0.image_bytes()
    }

    fn format(&self, pm: &(dyn Pmem + 'static)) -> std::result::Result<(), String> {
        self.0.format(pm)
    }

    fn open(
        &self,
        pm: Arc<dyn Pmem>,
        clock: Arc<dyn Clock>,
    ) -> std::result::Result<Arc<dyn FileSystem>, String> {
        self.0.open(pm, clock)
    }

    fn check(&self, pm: &(dyn Pmem + 'static)) -> Report {
        self.0.check(pm)
    }
}

fn main() -> ExitCode {
    if std::env::var_os(MARK).is_some() {
        engines::add(&ToyEngine);
        return cli::main();
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    images_are_made_mounted_and_shown(dir.path());
    lists_have_it(dir.path());
    println!("the toy is in every command");
    ExitCode::SUCCESS
}

/// Runs the program with the toy; panics unless it succeeds. Returns its output.
fn run(args: &[&str]) -> String {
    let output = program(args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn program(args: &[&str]) -> Output {
    let this = std::env::current_exe().expect("the path of this program");
    let mut command = Command::new(this);
    command.args(args).env(MARK, "1");
    command.output().expect("it starts")
}

fn images_are_made_mounted_and_shown(dir: &Path) {
    let (image, mnt) = (dir.join("image"), dir.join("mnt"));
    fs::create_dir(&mnt).expect("a directory");
    let (image, mnt_str) = (image.to_str().expect("plain"), mnt.to_str().expect("plain"));
    let made = run(&["mkfs", "-t", "toy", "--size", "1M", "--fur", "red", image]);
    assert!(made.contains("toy, fur red"), "{made}");
    let again = program(&["mkfs", "-t", "toy", image]);
    let why = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(why.contains("holds a toy file system"), "{why}");
    let other = program(&["mkfs", "-t", "bpfs", "--force", "--fur", "red", image]);
    let why = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(why.contains("--fur=red is for toy, not for bpfs"), "{why}");
    assert!(run(&["info", image]).contains("stuffed"));
    assert!(run(&["fsck", image]).contains("clean"));
    assert_eq!(run(&["dump", image]), "cotton\n");
    let mounted = run(&["mount", image, mnt_str, "-o", "fur=blue"]);
    assert!(mounted.contains("fur: blue"), "{mounted}");
    fs::write(mnt.join("file"), "text").expect("a write");
    assert_eq!(fs::read(mnt.join("file")).expect("a read"), b"text");
    run(&["umount", mnt_str]);
}

fn lists_have_it(dir: &Path) {
    assert!(run(&["guarantees"]).contains("toy (mode=plush)"));
    for command in [
        &["mkfs"][..],
        &["mount"],
        &["graph"],
        &["crash", "test"],
        &["bench", "micro"],
        &["bench", "scaling"],
    ] {
        let help = run(&[command, &["--help"]].concat());
        assert!(help.contains("toy"), "{command:?}: {help}");
        let is_bench = command[0] == "bench";
        assert!(
            !is_bench || help.contains("model, toy, toy:MODE;"),
            "{command:?}: {help}"
        );
    }
    let found = run(&["crash", "test", "-t", "toy", "--ops", "1", "--sample", "3"]);
    assert!(
        found.contains("toy-plush") && found.contains("0 violations"),
        "{found}"
    );
    let script = dir.join("script");
    fs::write(&script, "mkdir d 755\n").expect("a write");
    let script = script.to_str().expect("plain");
    assert_eq!(
        run(&["graph", "-t", "toy", "--script", script]),
        "<svg>1</svg>"
    );
    let man = dir.join("man");
    run(&["manpages", man.to_str().expect("plain")]);
    for (page, text) in [("mkfs", "fur"), ("mount", "fur"), ("guarantees", "toy")] {
        let page = fs::read_to_string(man.join(format!("selvedge-{page}.8"))).expect("a page");
        assert!(page.contains(text), "{page}");
    }
    let measured = run(&["bench", "micro", "-t", "toy", "--rounds", "1", "--json"]);
    assert!(measured.contains("\"toy\""), "{measured}");
}
