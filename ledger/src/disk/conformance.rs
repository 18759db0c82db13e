//! What every disk must do; run against each of them.

use std::io::ErrorKind;
use std::path::Path;

use super::{Disk, RealDisk, SimulatedDisk, create_folders};

fn kind<T>(result: std::io::Result<T>) -> ErrorKind {
    result.err().unwrap().kind()
}

/// `root` is an empty folder.
fn conforms(disk: &dyn Disk, root: &Path) {
    let (folder, file) = (root.join("a/b"), root.join("a/b/one"));
    assert!(!disk.exists(&folder).unwrap());
    assert_eq!(kind(disk.names(&folder)), ErrorKind::NotFound);
    assert_eq!(kind(disk.create(&file)), ErrorKind::NotFound);
    assert_eq!(kind(disk.create_folder(&folder)), ErrorKind::NotFound);
    create_folders(disk, &folder).unwrap();
    create_folders(disk, &folder).unwrap();
    assert_eq!(kind(disk.create_folder(&folder)), ErrorKind::AlreadyExists);
    assert!(disk.exists(&folder).unwrap());
    assert_eq!(disk.names(&folder).unwrap(), [""; 0]);

    assert_eq!(kind(disk.open(&file)), ErrorKind::NotFound);
    assert_eq!(kind(disk.edit(&file)), ErrorKind::NotFound);
    let mut written = disk.create(&file).unwrap();
    written.write(0, b"hello").unwrap();
    written.write(7, b"there").unwrap();
    written.sync().unwrap();
    assert_eq!(written.length().unwrap(), 12);
    assert_eq!(written.read(0, 100).unwrap(), b"hello\0\0there");
    assert_eq!(written.read(3, 2).unwrap(), b"lo");
    assert_eq!(written.read(50, 2).unwrap(), b"");
    written.truncate(4).unwrap();
    written.write(1, b"E").unwrap();
    assert_eq!(disk.open(&file).unwrap().read(0, 100).unwrap(), b"hEll");
    let mut again = disk.edit(&file).unwrap();
    again.write(4, b"!").unwrap();
    assert_eq!(disk.open(&file).unwrap().read(0, 100).unwrap(), b"hEll!");
    drop(disk.create(&file).unwrap());
    assert_eq!(disk.open(&file).unwrap().length().unwrap(), 0);

    let other = folder.join("two");
    disk.create(&other).unwrap().write(0, b"2").unwrap();
    assert_eq!(disk.names(&folder).unwrap(), ["one", "two"]);
    disk.rename(&other, &file).unwrap();
    assert_eq!(disk.names(&folder).unwrap(), ["one"]);
    assert_eq!(disk.open(&file).unwrap().read(0, 9).unwrap(), b"2");
    assert_eq!(kind(disk.rename(&other, &file)), ErrorKind::NotFound);
    assert_eq!(kind(disk.remove(&other)), ErrorKind::NotFound);
    disk.sync_folder(&folder).unwrap();

    disk.rename(&folder, &root.join("a/c")).unwrap();
    assert_eq!(disk.names(&root.join("a")).unwrap(), ["c"]);
    assert_eq!(disk.names(&root.join("a/c")).unwrap(), ["one"]);
    disk.remove(&root.join("a/c/one")).unwrap();
    disk.create(&root.join("a/c/three")).unwrap();
    disk.remove_folder(&root.join("a")).unwrap();
    assert_eq!(disk.names(root).unwrap(), [""; 0]);

    let lock = root.join("lock");
    let held = disk.lock(&lock).unwrap().unwrap();
    assert!(disk.lock(&lock).unwrap().is_none());
    drop(held);
    assert!(disk.lock(&lock).unwrap().is_some());
}

#[test]
fn the_real_disk_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conforms(&RealDisk, dir.path());
}

#[test]
fn the_simulated_disk_conforms() {
    conforms(&SimulatedDisk::default(), Path::new(""));
}
