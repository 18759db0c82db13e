//! `sublet-audit export`.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use sublet_ledger::export::{Format, Layout, Names, Writer};
use sublet_ledger::periods::Period;
use sublet_protocol::ids::TenantId;
use sublet_protocol::units::Timestamp;

use super::books;
use super::output::Output;
use super::trust::TrustArgs;

/// Write the charges of a period as CSV or Parquet, or as a FOCUS 1.2 file for FinOps tools.
///
/// There is one row for each lease and month (UTC). The ledger is verified and every charge computed
/// again on the way; if anything is wrong the file is not kept.
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The ledger, the data folder of a broker or of `sublet dev`, or a copy of one.
    dir: PathBuf,
    #[command(flatten)]
    trust: TrustArgs,
    /// What the rows are.
    #[arg(long, value_enum, default_value = "charges")]
    layout: LayoutName,
    /// How they are written.
    #[arg(long, value_enum, default_value = "csv")]
    format: FormatName,
    /// Only this month (UTC), as 2026-03; else all.
    #[arg(long)]
    month: Option<String>,
    /// Only what this tenant pays for.
    #[arg(long)]
    tenant: Option<TenantId>,
    /// Who writes the invoices; the cell if it is not named.
    #[arg(long)]
    issuer: Option<String>,
    /// A display name, as `acme=Acme Corp.`; may be repeated.
    #[arg(long = "name", value_name = "TENANT=NAME")]
    names: Vec<String>,
    /// The file to write; it must not exist. Standard output if it is not named.
    #[arg(long, short)]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LayoutName {
    Charges,
    Focus,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FormatName {
    Csv,
    Parquet,
}

/// Where the rows go until it is known that all is well.
enum Sink {
    /// A file beside the one that is wanted.
    File { aside: tempfile::NamedTempFile, wanted: PathBuf },
    /// A file that is copied to standard output.
    Standard(File),
}

impl Export {
    /// Does it; the exit code.
    pub(crate) fn run(self, output: &Output) -> Result<u8> {
        let layout = match self.layout {
            LayoutName::Charges => Layout::Charges,
            LayoutName::Focus => Layout::Focus,
        };
        let format = match self.format {
            FormatName::Csv => Format::Csv,
            FormatName::Parquet => Format::Parquet,
        };
        if matches!(format, Format::Parquet) && self.out.is_none() && io::stdout().is_terminal() {
            bail!("Parquet is not text: name a file with --out, or redirect the output");
        }
        let (from, until) = match &self.month {
            Some(month) => Period::month(month, "UTC").map(|it| (it.from(), it.until()))?,
            None => (Timestamp::ZERO, Timestamp::MAX),
        };
        let names = self.names()?;
        let sink = Sink::open(self.out.as_ref())?;
        let mut writer = None;
        let read = books::read(&self.dir, &self.trust, output, |charge, books| {
            if self.tenant.is_some_and(|tenant| tenant != charge.terms.tenant) {
                return Ok(());
            }
            if writer.is_none() {
                writer = Some(begin(&sink, (layout, format), books, &names)?);
            }
            writer.as_mut().map_or(Ok(()), |writer| writer.charge(charge, from, until))?;
            Ok(())
        })?;
        let code = books::complain(&read);
        if code != 0 {
            return Ok(code);
        }
        let writer = match writer {
            Some(writer) => writer,
            None => begin(&sink, (layout, format), &read.recount, &names)?,
        };
        let rows = writer.finish()?;
        if let Some(wanted) = sink.keep()? {
            let text = format!("{rows} rows written to {}\n", wanted.display());
            output.print(&serde_json::json!({ "rows": rows, "file": wanted }), &text)?;
        }
        Ok(0)
    }

    fn names(&self) -> Result<Names> {
        let mut names =
            Names { issuer: self.issuer.clone().unwrap_or_default(), ..Names::default() };
        for pair in &self.names {
            let (tenant, name) = pair.split_once('=').with_context(|| {
                format!("{pair:?} is not a display name: write tenant=name, as acme='Acme Corp.'")
            })?;
            let tenant = TenantId::new(tenant).with_context(|| format!("in --name {pair:?}"))?;
            names.tenants.insert(tenant, name.to_owned());
        }
        Ok(names)
    }
}

fn begin(
    sink: &Sink,
    form: (Layout, Format),
    books: &sublet_ledger::charges::Recount,
    names: &Names,
) -> Result<Writer<io::BufWriter<File>>> {
    let currency = books.currency().context("the ledger has no record of its founding")?;
    let mut names = names.clone();
    if names.issuer.is_empty() {
        names.issuer = books.cell().map(|cell| cell.to_string()).unwrap_or_default();
    }
    let file = io::BufWriter::new(sink.file()?);
    Ok(Writer::new(file, form, currency, names)?)
}

impl Sink {
    fn open(wanted: Option<&PathBuf>) -> Result<Sink> {
        let Some(wanted) = wanted else {
            let file = tempfile::tempfile().context("could not make a temporary file")?;
            return Ok(Sink::Standard(file));
        };
        if wanted.exists() {
            bail!("{} exists already: name another file or remove it", wanted.display());
        }
        let folder = wanted.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or_else(|| std::path::Path::new("."));
        let aside = tempfile::NamedTempFile::new_in(folder);
        let aside = aside.with_context(|| format!("could not write in {}", folder.display()))?;
        Ok(Sink::File { aside, wanted: wanted.clone() })
    }

    fn file(&self) -> Result<File> {
        let file = match self {
            Sink::File { aside, .. } => aside.as_file().try_clone(),
            Sink::Standard(file) => file.try_clone(),
        };
        file.context("could not open the file for the export")
    }

    /// All is well: gives the file its name, or copies it to standard output.
    fn keep(self) -> Result<Option<PathBuf>> {
        match self {
            Sink::File { aside, wanted } => {
                let kept = aside.persist_noclobber(&wanted);
                kept.with_context(|| format!("could not name {}", wanted.display()))?;
                Ok(Some(wanted))
            }
            Sink::Standard(mut file) => {
                io::Seek::rewind(&mut file)?;
                let mut out = io::stdout().lock();
                io::copy(&mut file, &mut out)?;
                out.flush()?;
                Ok(None)
            }
        }
    }
}
