//! What a simulated disk holds, and how its next call goes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};

use super::node::{File, Folder, Node, Number};
use super::simulated::{DiskFault, Omission};

/// The folder that everything is in.
pub(super) const ROOT: Number = 0;
/// Numbers of the operating system, equal on every Unix.
pub(super) const EIO: i32 = 5;
const ENOSPC: i32 = 28;

pub(super) struct State {
    pub(super) nodes: BTreeMap<Number, Node>,
    pub(super) next: Number,
    pub(super) locked: BTreeSet<PathBuf>,
    /// Counts losses of power: what was opened before one is void.
    pub(super) life: u64,
    pub(super) calls: u64,
    pub(super) planned: Option<(u64, DiskFault)>,
    pub(super) is_dark: bool,
    pub(super) is_full: bool,
    pub(super) omission: Option<Omission>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            nodes: BTreeMap::from([(ROOT, Node::Folder(Folder::default()))]),
            next: ROOT + 1,
            locked: BTreeSet::new(),
            life: 0,
            calls: 0,
            planned: None,
            is_dark: false,
            is_full: false,
            omission: None,
        }
    }
}

/// What a call does, as far as faults differ by it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Does {
    /// Reads, removes or renames.
    Other,
    /// Takes room.
    Grow,
    /// Syncs.
    Sync,
}

/// How a call goes.
pub(super) enum Course {
    Well,
    /// It happens, and nobody hears of it.
    Dark,
    Fails(io::Error),
}

pub(super) fn dark() -> io::Error {
    io::Error::other("the power is gone")
}

pub(super) fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl State {
    /// Counts a call and says how it goes.
    pub(super) fn course(&mut self, does: Does) -> Course {
        self.calls += 1;
        if self.is_dark {
            return Course::Fails(dark());
        }
        let due = self.planned.filter(|(at, _)| *at <= self.calls).map(|(_, fault)| fault);
        if due.is_some() {
            self.planned = None;
        }
        match due {
            Some(DiskFault::PowerLoss) => {
                self.is_dark = true;
                return if does == Does::Sync { Course::Fails(dark()) } else { Course::Dark };
            }
            Some(DiskFault::InputOutput) => {
                return Course::Fails(io::Error::from_raw_os_error(EIO));
            }
            Some(DiskFault::Full) => self.is_full = true,
            None => {}
        }
        if self.is_full && does == Does::Grow {
            return Course::Fails(io::Error::from_raw_os_error(ENOSPC));
        }
        Course::Well
    }

    pub(super) fn add(&mut self, node: Node) -> Number {
        let number = self.next;
        self.next += 1;
        self.nodes.insert(number, node);
        number
    }

    pub(super) fn file(&mut self, number: Number) -> io::Result<&mut File> {
        match self.nodes.get_mut(&number) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Folder(_)) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(missing()),
        }
    }

    pub(super) fn folder(&mut self, number: Number) -> io::Result<&mut Folder> {
        match self.nodes.get_mut(&number) {
            Some(Node::Folder(folder)) => Ok(folder),
            Some(Node::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(missing()),
        }
    }

    /// The node of this name.
    pub(super) fn find(&mut self, path: &Path) -> io::Result<Number> {
        let mut node = ROOT;
        for component in path.components() {
            if let Component::Normal(name) = component {
                let name = name.to_str().ok_or_else(missing)?;
                node = *self.folder(node)?.now.get(name).ok_or_else(missing)?;
            }
        }
        Ok(node)
    }

    /// The folder that a name is in, and the name there.
    pub(super) fn place(&mut self, path: &Path) -> io::Result<(Number, String)> {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(missing)?;
        let folder = self.find(path.parent().unwrap_or(Path::new("")))?;
        self.folder(folder)?;
        Ok((folder, name.to_owned()))
    }

    /// The files below a folder with the number of their durable bytes, by name.
    pub(super) fn files(&mut self, folder: Number, path: &Path) -> Vec<(PathBuf, Number, usize)> {
        let names = self.folder(folder).map(|folder| folder.now.clone()).unwrap_or_default();
        let mut files = Vec::new();
        for (name, number) in names {
            let path = path.join(name);
            match self.nodes.get(&number) {
                Some(Node::File(file)) => {
                    files.push((path, number, file.durable_length()));
                }
                Some(Node::Folder(_)) => files.extend(self.files(number, &path)),
                None => {}
            }
        }
        files
    }

    /// Forgets what no name leads to, nor can after a loss of power.
    pub(super) fn sweep(&mut self) {
        let (mut seen, mut next) = (BTreeSet::from([ROOT]), vec![ROOT]);
        while let Some(number) = next.pop() {
            if let Some(Node::Folder(folder)) = self.nodes.get(&number) {
                next.extend(folder.nodes().filter(|node| seen.insert(*node)));
            }
        }
        self.nodes.retain(|number, _| seen.contains(number));
    }
}
