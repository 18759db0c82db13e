//! A disk in memory that breaks as disks do: it loses what was not synced when the power goes,
//! tears writes at sector borders, flips bits, fails calls and gets full. For tests and the chaos
//! simulator.
//!
//! It is deterministic: it has no randomness of its own, whoever breaks it says how.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::node::{File, Folder, Loss, Node, Number};
use super::state::{Course, Does, ROOT, State, dark, missing};
use super::{Disk, DiskFile, Lock};

/// What a call on the disk can run into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskFault {
    /// The power goes during the call; nothing works until [`SimulatedDisk::lose_power`].
    PowerLoss,
    /// The call fails with EIO. What the sync of a file should have written is forgotten then, as
    /// Linux does; names stay open, since file systems keep them in a journal.
    InputOutput,
    /// From this call on nothing can be added (ENOSPC) until [`SimulatedDisk::mend`].
    Full,
}

/// What a disk that lies, or a program with a bug, leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Omission {
    /// The sync of files.
    FileSync,
    /// The sync of folders.
    FolderSync,
}

/// A bit that was flipped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Flip {
    /// In which file.
    pub file: PathBuf,
    node: Number,
    at: usize,
}

/// The disk of one machine. Clones are the same disk.
#[derive(Clone, Default)]
pub struct SimulatedDisk {
    state: Arc<Mutex<State>>,
}

impl SimulatedDisk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls made so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Lets the call after `calls` more run into `fault`, in place of what was planned before.
    pub fn plan(&self, calls: u64, fault: DiskFault) {
        let mut state = self.state();
        state.planned = Some((state.calls.saturating_add(calls).saturating_add(1), fault));
    }

    /// Whether the power is gone.
    #[must_use]
    pub fn is_dark(&self) -> bool {
        self.state().is_dark
    }

    /// Whether nothing can be added.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.state().is_full
    }

    /// Takes the power away and brings it back. What was not synced is lost, torn or kept as
    /// `choose` says, which gives any number below its argument; what is open is void.
    pub fn lose_power(&self, choose: &mut dyn FnMut(u64) -> u64) -> Loss {
        let mut state = self.state();
        state.is_dark = false;
        state.life += 1;
        state.locked.clear();
        let mut all = Loss::default();
        for node in state.nodes.values_mut() {
            let loss = match node {
                Node::File(file) => file.lose_power(choose),
                Node::Folder(folder) => folder.lose_power(choose),
            };
            all = Loss { lost: all.lost + loss.lost, torn: all.torn + loss.torn };
        }
        state.sweep();
        all
    }

    /// The system writes back what nobody has synced, as it does by itself after a while.
    pub fn write_back(&self) {
        let mut state = self.state();
        for node in state.nodes.values_mut() {
            match node {
                Node::File(file) => file.sync(),
                Node::Folder(folder) => folder.sync(),
            }
        }
        state.sweep();
    }

    /// Nothing fails any more that was planned to, and there is room.
    pub fn mend(&self) {
        let mut state = self.state();
        state.planned = None;
        state.is_full = false;
    }

    /// Leaves out what `omission` says from now on, and says that it was done.
    pub fn omit(&self, omission: Omission) {
        self.state().omission = Some(omission);
    }

    /// Flips a bit of a file in the folder `folder`, among its durable bytes. `None` when there are
    /// none.
    pub fn flip_bit(&self, folder: &Path, choose: &mut dyn FnMut(u64) -> u64) -> Option<Flip> {
        let mut state = self.state();
        let mut files = state.files(ROOT, Path::new(""));
        files.retain(|(path, _, length)| path.starts_with(folder) && *length > 0);
        let (file, node, length) = files.get(pick(files.len(), choose)?)?.clone();
        let (at, bit) = (pick(length, choose)?, choose(8));
        state.file(node).ok()?.flip(at, bit);
        Some(Flip { file, node, at })
    }

    /// Whether the flipped bit is still where it was: nobody has replaced, cut or removed the file,
    /// or written there.
    #[must_use]
    pub fn has(&self, flip: &Flip) -> bool {
        let mut state = self.state();
        let is_there = state.find(&flip.file).is_ok_and(|node| node == flip.node);
        is_there && state.file(flip.node).is_ok_and(|file| file.has_flip(flip.at))
    }

    /// The bytes of a file as a process sees them, past every fault: what an operator copies.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn copy_out(&self, file: &Path) -> io::Result<Vec<u8>> {
        let mut state = self.state();
        let node = state.find(file)?;
        Ok(state.file(node)?.now.clone())
    }

    /// Puts a file there, durable, past every fault: what an operator brings back.
    ///
    /// # Errors
    /// `NotFound` when its folder is not there.
    pub fn copy_in(&self, file: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let (folder, name) = state.place(file)?;
        let node = state.add(Node::File(File::durable(bytes)));
        let folder = state.folder(folder)?;
        folder.put(&name, node);
        folder.sync();
        Ok(())
    }

    fn act<T>(&self, does: Does, act: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state();
        match state.course(does) {
            Course::Well => act(&mut state),
            Course::Dark => {
                act(&mut state)?;
                Err(dark())
            }
            Course::Fails(error) => Err(error),
        }
    }

    fn opened(&self, node: Number) -> Box<dyn DiskFile> {
        let life = self.state().life;
        Box::new(SimulatedFile { disk: self.clone(), node, life })
    }
}

/// A place in a list of `count`.
fn pick(count: usize, choose: &mut dyn FnMut(u64) -> u64) -> Option<usize> {
    let count = u64::try_from(count).ok().filter(|count| *count > 0)?;
    usize::try_from(choose(count)).ok()
}

impl Disk for SimulatedDisk {
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.act(Does::Other, |state| Ok(state.find(path).is_ok()))
    }

    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        self.act(Does::Grow, |state| {
            let (above, name) = state.place(folder)?;
            if state.folder(above)?.now.contains_key(&name) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            let node = state.add(Node::Folder(Folder::default()));
            state.folder(above)?.put(&name, node);
            Ok(())
        })
    }

    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        self.act(Does::Other, |state| {
            let folder = state.find(folder)?;
            Ok(state.folder(folder)?.now.keys().cloned().collect())
        })
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        let mut state = self.state();
        let course = state.course(Does::Sync);
        let node = state.find(folder)?;
        match course {
            Course::Well if state.omission == Some(Omission::FolderSync) => Ok(()),
            Course::Well => {
                state.folder(node)?.sync();
                state.sweep();
                Ok(())
            }
            Course::Dark => Err(dark()),
            Course::Fails(error) => Err(error),
        }
    }

    fn create(&self, file: &Path) -> io::Result<Box<dyn DiskFile>> {
        let is_there = self.state().find(file).is_ok();
        let does = if is_there { Does::Other } else { Does::Grow };
        let node = self.act(does, |state| {
            let (folder, name) = state.place(file)?;
            if let Some(node) = state.folder(folder)?.now.get(&name).copied() {
                state.file(node)?.truncate(0);
                return Ok(node);
            }
            let node = state.add(Node::File(File::default()));
            state.folder(folder)?.put(&name, node);
            Ok(node)
        })?;
        Ok(self.opened(node))
    }

    fn open(&self, file: &Path) -> io::Result<Box<dyn DiskFile>> {
        let node = self.act(Does::Other, |state| {
            let node = state.find(file)?;
            state.file(node).map(|_| node)
        })?;
        Ok(self.opened(node))
    }

    fn edit(&self, file: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.open(file)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.act(Does::Other, |state| {
            let ((folder, from), (other, to)) = (state.place(from)?, state.place(to)?);
            if folder != other {
                return Err(io::ErrorKind::CrossesDevices.into());
            }
            let folder = state.folder(folder)?;
            if !folder.now.contains_key(&from) {
                return Err(missing());
            }
            folder.rename(&from, &to);
            Ok(())
        })
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        self.act(Does::Other, |state| {
            let (folder, name) = state.place(file)?;
            let node = state.find(file)?;
            state.file(node)?;
            state.folder(folder)?.remove(&name);
            Ok(())
        })
    }

    fn remove_folder(&self, folder: &Path) -> io::Result<()> {
        self.act(Does::Other, |state| {
            let (above, name) = state.place(folder)?;
            let node = state.find(folder)?;
            state.folder(node)?;
            state.folder(above)?.remove(&name);
            Ok(())
        })
    }

    fn lock(&self, file: &Path) -> io::Result<Option<Lock>> {
        drop(self.create(file)?);
        let mut state = self.state();
        if !state.locked.insert(file.to_owned()) {
            return Ok(None);
        }
        Ok(Some(Box::new(Held { disk: self.clone(), file: file.to_owned(), life: state.life })))
    }
}

struct Held {
    disk: SimulatedDisk,
    file: PathBuf,
    life: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if state.life == self.life {
            state.locked.remove(&self.file);
        }
    }
}

struct SimulatedFile {
    disk: SimulatedDisk,
    node: Number,
    life: u64,
}

impl SimulatedFile {
    fn act<T>(&self, does: Does, act: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
        self.disk.act(does, |state| {
            if state.life != self.life {
                return Err(dark());
            }
            act(state.file(self.node)?)
        })
    }
}

fn place(at: u64) -> io::Result<usize> {
    usize::try_from(at).map_err(|_| io::ErrorKind::InvalidInput.into())
}

impl DiskFile for SimulatedFile {
    fn length(&self) -> io::Result<u64> {
        self.act(Does::Other, |file| {
            Ok(u64::try_from(file.now.len()).expect("a length fits in 64 bits"))
        })
    }

    fn read(&self, at: u64, most: usize) -> io::Result<Vec<u8>> {
        self.act(Does::Other, |file| {
            let rest = file.now.get(place(at)?..).unwrap_or_default();
            Ok(rest[..rest.len().min(most)].to_vec())
        })
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let at = place(at)?;
        let mut state = self.disk.state();
        let course = state.course(Does::Grow);
        if state.life != self.life {
            return Err(dark());
        }
        let is_dark = state.is_dark;
        let file = state.file(self.node)?;
        match course {
            Course::Well => {
                file.write(at, bytes);
                Ok(())
            }
            Course::Dark => {
                file.write(at, bytes);
                Err(dark())
            }
            Course::Fails(error) => {
                if !is_dark {
                    file.write(at, &bytes[..bytes.len() / 2]);
                }
                Err(error)
            }
        }
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        let length = place(length)?;
        self.act(Does::Other, |file| {
            file.truncate(length);
            Ok(())
        })
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.state();
        let course = state.course(Does::Sync);
        if state.life != self.life {
            return Err(dark());
        }
        let (is_dark, omission) = (state.is_dark, state.omission);
        let file = state.file(self.node)?;
        match course {
            Course::Well if omission == Some(Omission::FileSync) => Ok(()),
            Course::Well => {
                file.sync();
                Ok(())
            }
            Course::Dark => Err(dark()),
            Course::Fails(error) => {
                if !is_dark {
                    file.forget_changes();
                }
                Err(error)
            }
        }
    }
}

#[cfg(test)]
#[path = "simulated_tests.rs"]
mod tests;
