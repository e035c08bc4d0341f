//! `selvedge stats`: the counters of a mount.

use crate::failure::{Failure, Outcome};
use crate::mount::facts;
use crate::output;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Print the counters of a mount
///
/// Without options the output is in the text format of Prometheus.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A directory of the mount
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        let dir = self.dir.display();
        let absent = || Failure::new(format_args!("{dir}: not in a mount of Selvedge"));
        let root = facts::root_of(&self.dir).ok_or_else(absent)?;
        let groups = facts::groups(&root).ok_or_else(absent)?;
        let list = groups["groups"].as_array().map_or(&[][..], Vec::as_slice);
        let sealed = list.iter().filter(|group| group["sealed"] == true);
        let pending = list.iter().filter_map(|group| group["pending"].as_u64());
        let counters = json!({
            "io_errors": facts::io_errors(&root),
            "groups": {
                "open": groups["total"],
                "sealed": sealed.count(),
                "pending": pending.sum::<u64>(),
            },
            "cache": facts::stats(&root),
        });
        match self.json {
            true => output::print_json(&counters)?,
            false => {
                let mut text = String::new();
                metrics(&mut text, "selvedge", &root, &counters);
                output::print(text)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Appends each number as a metric, named by its path.
fn metrics(out: &mut String, name: &str, root: &Path, value: &Value) {
    match value {
        Value::Object(members) => {
            for (member, value) in members {
                metrics(out, &format!("{name}_{member}"), root, value);
            }
        }
        Value::Number(number) => {
            let name: String = name.chars().map(metric_character).collect();
            let root = root.to_string_lossy();
            let root = root
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            out.push_str(&format!(
                "# TYPE {name} untyped\n{name}{{mount=\"{root}\"}} {number}\n"
            ));
        }
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) => {}
    }
}

/// A character of a metric's name.
fn metric_character(c: char) -> char {
    if c.is_ascii_alphanumeric() { c } else { '_' }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_a_metric_with_the_mount() {
        let mut text = String::new();
        let counters = json!({"a-b": {"c": 1}, "d": "x", "e": null});
        metrics(&mut text, "selvedge", Path::new("/a \"b\""), &counters);
        let expected = "# TYPE selvedge_a_b_c untyped\nselvedge_a_b_c{mount=\"/a \\\"b\\\"\"} 1\n";
        assert_eq!(text, expected);
    }
}
