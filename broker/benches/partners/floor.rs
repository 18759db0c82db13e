//! The bare disk: one writer that appends and fsyncs, without consensus, network or state.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::report::Measured;

/// Bytes laid out beforehand, so that no fsync has to write where the file ends.
const LAID_OUT: usize = 64 * 1_024 * 1_024;

/// Appends `batch` commands of `bytes` each and fdatasyncs, again and again for `time`. Each command
/// of a batch counts, with the time of its batch.
pub(crate) fn measure(
    folder: &Path,
    batch: usize,
    bytes: usize,
    time: Duration,
) -> anyhow::Result<Measured> {
    let path = folder.join("floor");
    std::fs::write(&path, vec![0; LAID_OUT])?;
    let mut file = File::options().write(true).open(&path)?;
    file.sync_all().context("laying the file out")?;
    let commands = vec![b'x'; batch * bytes];
    let (mut times, begun) = (Vec::new(), Instant::now());
    while begun.elapsed() < time && times.len() / batch < LAID_OUT / commands.len() {
        let asked = Instant::now();
        file.write_all(&commands)?;
        file.sync_data()?;
        times.extend(std::iter::repeat_n(asked.elapsed(), batch));
    }
    let together = begun.elapsed();
    std::fs::remove_file(path)?;
    Measured::of(times, together)
}
