//! Opens a trace file, plain or xz, with bounds on what it may unpack to.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use lzma_rust2::XzReader;

use super::Error;

/// Longest line, bytes: the widest row of any of the formats is below 400.
pub(crate) const LINE_BYTES_MAX: u64 = 65_536;
/// Most unpacked text of one file, bytes. The largest full public download (Helios, one month of
/// minutes of every tenant) is below 0.5 GiB.
pub(crate) const TEXT_BYTES_MAX: u64 = 4 << 30;
/// Decoder memory allowed, KiB: `xz -9` needs 65 MiB.
const XZ_MEMORY_KIB_MAX: u32 = 1 << 18;
/// First bytes of an xz stream (the .xz file format, section 2.1.1.1).
const XZ_MAGIC: &[u8] = &[0xFD, b'7', b'z', b'X', b'Z', 0x00];
/// First bytes of formats people also pack traces with.
const OTHER_MAGICS: [(&[u8], &str); 4] = [
    (&[0x1F, 0x8B], "gzip"),
    (&[0x28, 0xB5, 0x2F, 0xFD], "zstd"),
    (b"BZh", "bzip2"),
    (b"PK\x03\x04", "zip"),
];

/// How the bytes are packed; decides which error a failed read becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    /// Text as it is.
    Plain,
    /// An xz stream.
    Xz,
}

/// An opened trace: its text, bounded.
pub(crate) struct Source {
    /// The path as given, for messages.
    pub(crate) file: PathBuf,
    /// How the file was packed.
    pub(crate) packing: Packing,
    /// The unpacked text; fails with a [`Limit`] inside an `io::Error` when it is too much.
    pub(crate) text: Box<dyn Read>,
}

/// The path of `stem`.csv.xz or else `stem`.csv in `folder`.
/// Fails with [`Error::NotAFolder`] or [`Error::Missing`].
pub(crate) fn find(folder: &Path, stem: &'static str) -> Result<PathBuf, Error> {
    if !folder.is_dir() {
        return Err(Error::NotAFolder { folder: folder.to_owned() });
    }
    [".csv.xz", ".csv"]
        .iter()
        .map(|ending| folder.join(format!("{stem}{ending}")))
        .find(|path| path.exists())
        .ok_or_else(|| Error::Missing { folder: folder.to_owned(), stem })
}

/// Opens `file`, telling the packing by its first bytes.
pub(crate) fn open(file: &Path) -> Result<Source, Error> {
    let file_name_ends_in_xz = file.extension().is_some_and(|ending| ending == "xz");
    let file = file.to_owned();
    let opened = File::open(&file).and_then(|handle| {
        let mut packed = BufReader::with_capacity(1 << 16, handle);
        let first = packed.fill_buf()?.to_vec();
        Ok((packed, first))
    });
    let (packed, first) = match opened {
        Ok(opened) => opened,
        Err(source) => return Err(Error::Open { file, source }),
    };
    if first.is_empty() {
        return Err(Error::Empty { file });
    }
    if let Some((_, kind)) = OTHER_MAGICS.iter().find(|(magic, _)| first.starts_with(magic)) {
        return Err(Error::OtherCompression { file, kind });
    }
    if XZ_MAGIC.starts_with(&first) || first.starts_with(XZ_MAGIC) {
        let text = XzReader::new_mem_limit(packed, true, XZ_MEMORY_KIB_MAX);
        return Ok(Source { file, packing: Packing::Xz, text: Box::new(Bounded::new(text)) });
    }
    if file_name_ends_in_xz {
        return Err(Error::NotXz { file });
    }
    Ok(Source { file, packing: Packing::Plain, text: Box::new(Bounded::new(packed)) })
}

/// Which bound a text exceeded; travels inside an `io::Error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Limit {
    /// A line above [`LINE_BYTES_MAX`].
    #[error("line too long")]
    Line,
    /// A text above [`TEXT_BYTES_MAX`].
    #[error("text too long")]
    Text,
}

/// Passes bytes on until a line or the whole becomes too long.
struct Bounded<R> {
    inner: R,
    line_bytes: u64,
    text_bytes: u64,
}

impl<R: Read> Bounded<R> {
    fn new(inner: R) -> Self {
        Self { inner, line_bytes: 0, text_bytes: 0 }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        for piece in buffer[..count].split_inclusive(|&byte| byte == b'\n') {
            self.line_bytes = self.line_bytes.saturating_add(length(piece));
            if self.line_bytes > LINE_BYTES_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, Limit::Line));
            }
            if piece.ends_with(b"\n") {
                self.line_bytes = 0;
            }
        }
        self.text_bytes = self.text_bytes.saturating_add(length(&buffer[..count]));
        if self.text_bytes > TEXT_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, Limit::Text));
        }
        Ok(count)
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}
