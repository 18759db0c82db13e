//! `sublet-agent inventory --from FILE…`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;

use crate::capture::problem::{Problem, Severity};
use crate::capture::report::Report;
use crate::capture::{FILE_BYTES_MAX, Inventory, Kind};

/// What to read.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Captures to read; `-` is the standard input. What each is, its content tells.
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    from: Vec<PathBuf>,
    /// What the captures are, if their content does not tell.
    #[arg(long)]
    kind: Option<KindName>,
}

/// The names of the kinds.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum KindName {
    /// `nvidia-smi -q -x`.
    SmiXml,
    /// `nvidia-smi -L`.
    SmiList,
    /// A kernel log with Xid lines.
    KernelLog,
}

impl From<KindName> for Kind {
    fn from(name: KindName) -> Self {
        match name {
            KindName::SmiXml => Self::SmiXml,
            KindName::SmiList => Self::SmiList,
            KindName::KernelLog => Self::KernelLog,
        }
    }
}

/// Prints the inventory as JSON: 0 if every file was read, 1 if one was not or nothing could be
/// printed.
pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let mut inventory = Inventory::default();
    let kind = arguments.kind.map(Kind::from);
    for path in &arguments.from {
        let name = path.display().to_string();
        match read(path) {
            Ok(text) => inventory.add(&name, &text, kind),
            Err(error) => inventory.problems.push(Problem {
                file: name,
                line: None,
                path: None,
                severity: Severity::Error,
                text: error.to_string(),
                advice: None,
            }),
        }
    }
    inventory.apply_faults();
    let is_whole = inventory.problems.iter().all(|p| p.severity == Severity::Warning);
    let report = Report::from(inventory);
    let mut out = io::stdout().lock();
    let written = serde_json::to_writer_pretty(&mut out, &report).map_err(io::Error::from);
    let written = written.and_then(|()| writeln!(out));
    let is_closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    if is_whole && written.as_ref().err().is_none_or(is_closed) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The text of a file of at most [`FILE_BYTES_MAX`]; bytes that are no UTF-8 become marks.
fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    let limit = FILE_BYTES_MAX.saturating_add(1);
    if path == Path::new("-") {
        io::stdin().lock().take(limit).read_to_end(&mut bytes)?;
    } else {
        File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    }
    if u64::try_from(bytes.len()).is_ok_and(|length| length > FILE_BYTES_MAX) {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 64 MiB"));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
