//! How the simulated disk breaks.

use super::*;
use crate::disk::state::EIO;

const NAME: &str = "file";

fn written(disk: &SimulatedDisk, bytes: &[u8]) -> Box<dyn DiskFile> {
    let mut file = disk.create(Path::new(NAME)).unwrap();
    file.write(0, bytes).unwrap();
    file
}

fn read(disk: &SimulatedDisk) -> Vec<u8> {
    disk.open(Path::new(NAME)).unwrap().read(0, 1_000).unwrap()
}

#[test]
fn bytes_last_with_the_files_sync_and_names_with_the_folders() {
    let lose_all = |disk: &SimulatedDisk| disk.lose_power(&mut |_| 0);
    let disk = SimulatedDisk::default();
    written(&disk, b"one").sync().unwrap();
    lose_all(&disk);
    assert!(!disk.exists(Path::new(NAME)).unwrap(), "its name was not synced");

    written(&disk, b"one").sync().unwrap();
    disk.sync_folder(Path::new("")).unwrap();
    written(&disk, b"two");
    lose_all(&disk);
    assert_eq!(read(&disk), b"one");
}

#[test]
fn what_was_open_when_the_power_went_is_void_and_so_is_its_lock() {
    let disk = SimulatedDisk::default();
    let mut file = written(&disk, b"one");
    let lock = disk.lock(Path::new("lock")).unwrap();
    disk.lose_power(&mut |below| below - 1);
    assert!(file.write(0, b"two").is_err() && file.sync().is_err() && file.length().is_err());
    let again = disk.lock(Path::new("lock")).unwrap();
    drop(lock);
    assert!(again.is_some() && disk.lock(Path::new("lock")).unwrap().is_none());
    assert_eq!(read(&disk), b"one");
}

#[test]
fn the_planned_call_runs_into_its_fault_and_the_others_do_not() {
    let disk = SimulatedDisk::default();
    let mut file = written(&disk, b"one");
    disk.plan(1, DiskFault::InputOutput);
    file.write(3, b"+").unwrap();
    assert_eq!(file.sync().err().unwrap().raw_os_error(), Some(EIO));
    file.sync().unwrap();
    disk.sync_folder(Path::new("")).unwrap();
    disk.lose_power(&mut |_| 0);
    assert_eq!(read(&disk), b"", "a failed sync forgot it, and a good one does not know it");

    disk.plan(0, DiskFault::PowerLoss);
    assert!(disk.names(Path::new("")).is_err() && disk.is_dark());
    assert!(disk.names(Path::new("")).is_err());
    disk.lose_power(&mut |_| 0);
    assert!(disk.names(Path::new("")).is_ok());
}

#[test]
fn a_full_disk_takes_a_part_of_a_write_and_nothing_more_until_it_is_mended() {
    let disk = SimulatedDisk::default();
    let mut file = written(&disk, b"one");
    disk.plan(0, DiskFault::Full);
    let refused =
        |result: io::Result<()>| result.err().unwrap().kind() == io::ErrorKind::StorageFull;
    assert!(refused(file.write(3, b"more")));
    assert_eq!(read(&disk), b"onemo");
    assert!(refused(disk.create_folder(Path::new("folder"))));
    assert!(refused(disk.create(Path::new("other")).map(drop)));
    file.truncate(3).unwrap();
    file.sync().unwrap();
    disk.mend();
    file.write(3, b"more").unwrap();
    assert_eq!(read(&disk), b"onemore");
}

#[test]
fn a_flipped_bit_is_there_until_the_file_is_replaced() {
    let disk = SimulatedDisk::default();
    let flip = |disk: &SimulatedDisk| disk.flip_bit(Path::new(""), &mut |_| 0);
    assert_eq!(flip(&disk), None);
    written(&disk, b"a").sync().unwrap();
    let flipped = flip(&disk).unwrap();
    assert_eq!((read(&disk), flipped.file.as_path()), (b"`".to_vec(), Path::new(NAME)));
    assert!(disk.has(&flipped));
    disk.copy_in(Path::new(NAME), b"a").unwrap();
    assert!(!disk.has(&flipped));
    assert_eq!(disk.copy_out(Path::new(NAME)).unwrap(), b"a");
    disk.lose_power(&mut |_| 0);
    assert_eq!(read(&disk), b"a");
}

#[test]
fn a_sync_that_is_left_out_says_that_it_was_done() {
    for (omission, left) in [(Omission::FileSync, true), (Omission::FolderSync, false)] {
        let disk = SimulatedDisk::default();
        disk.omit(omission);
        written(&disk, b"one").sync().unwrap();
        disk.sync_folder(Path::new("")).unwrap();
        disk.lose_power(&mut |_| 0);
        assert_eq!(disk.exists(Path::new(NAME)).unwrap(), left);
        if left {
            assert_eq!(read(&disk), b"");
        }
    }
}
