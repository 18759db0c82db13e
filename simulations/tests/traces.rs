//! The loaders on good files, on every kind of bad one, and on the whole public traces where they are.
#![allow(clippy::unwrap_used, clippy::as_conversions, clippy::print_stderr, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::fs;
use std::path::{Path, PathBuf};

use sublet_simulations::traces::{Error, helios, openb, philly};

mod support;
use support::{fixtures, shared_data};

fn philly_jobs(folder: &Path) -> Result<Vec<philly::Job>, Error> {
    philly::jobs(&philly::jobs_file(folder)?)?.collect()
}

/// Writes `text` as the job file of a new folder and returns the message its loading ends with, with the
/// folder's name cut away.
#[track_caller]
fn message_for_jobs(text: impl AsRef<[u8]>) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("philly_jobs.csv"), text).unwrap();
    let error = philly_jobs(folder.path()).expect_err("the file is bad");
    error.to_string().replace(&format!("{}/", folder.path().display()), "")
}

const HEADER: &str = "timestamp,duration,num_gpus,gpu_time,cluster\n";
const GOOD_ROW: &str = "2017-10-02 09:00:00,60.0,1,60.0,aa11\n";

#[test]
fn philly_jobs_are_read_plain_and_packed() {
    let plain = philly_jobs(&fixtures("philly")).unwrap();
    let packed = philly_jobs(&fixtures("philly-xz")).unwrap();
    assert_eq!(plain, packed);
    let brief: Vec<_> = plain
        .iter()
        .map(|job| (job.line, job.duration_seconds, job.gpus, job.vc.as_str()))
        .collect();
    assert_eq!(
        brief,
        [
            (2, 3_600, 1, "aa11"),
            (3, 7_200, 8, "aa11"),
            (4, 60, 2, "bb22"), // 59.2 s, rounded up
            (5, 600, 1, "bb22"),
            (6, 600, 16, "cc33"),
        ]
    );
}

#[test]
fn packed_files_are_known_by_their_bytes_not_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let packed = fs::read(fixtures("philly-xz").join("philly_jobs.csv.xz")).unwrap();
    fs::write(folder.path().join("philly_jobs.csv"), packed).unwrap();
    assert_eq!(philly_jobs(folder.path()).unwrap().len(), 5);
}

#[test]
fn local_times_follow_the_clocks_of_the_cluster() {
    let jobs = philly_jobs(&fixtures("philly")).unwrap();
    // Summer time, UTC-4.
    assert_eq!(jobs[0].submit.to_string(), "2017-10-02T13:00:00Z");
    // 01:30 came twice that night: the earlier one, still summer time.
    assert_eq!(jobs[3].submit.to_string(), "2017-11-05T05:30:00Z");
    // An hour and a half later by the wall clock, two and a half in truth.
    assert_eq!(jobs[4].submit.to_string(), "2017-11-05T08:00:00Z");
}

#[test]
fn nodes_and_attempts_are_read() {
    let nodes = philly::nodes(&fixtures("philly")).unwrap();
    let nodes: Vec<_> = nodes.iter().map(|(vc, nodes)| (vc.as_str(), *nodes)).collect();
    assert_eq!(nodes, [("aa11", 2), ("bb22", 1)]);
    let attempts: Vec<_> =
        philly::attempts(&fixtures("philly")).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(attempts[0].submit.to_string(), "2017-10-02T13:00:00Z");
    assert_eq!(
        (attempts[0].wait_seconds, attempts[0].run_seconds, attempts[0].gpus),
        (12, 3_600, 1)
    );
    assert_eq!(attempts[1].vc, None);
}

#[test]
fn helios_minutes_are_read() {
    let minutes: Vec<_> = helios::minutes(&fixtures("helios"), "earth_vc_minute")
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let first = &minutes[0];
    assert_eq!((first.gpus.total, first.gpus.running, first.idle_gpus), (16, 10, 6));
    assert_eq!(
        (first.gpus.pending, first.large.gpus.pending, first.allocated_permille),
        (8, 8, 625)
    );
    assert_eq!(minutes[1].allocated_permille, 1_000);
    assert_eq!(minutes.len(), 3);
}

#[test]
fn openb_nodes_and_pods_are_read_with_and_without_their_life() {
    let nodes: Vec<_> = openb::nodes(&fixtures("openb").join("nodes.csv"))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(nodes[0].model, None);
    assert_eq!((nodes[1].gpus, nodes[1].model.as_deref()), (8, Some("T4")));
    let pods = |name: &str| -> Vec<openb::Pod> {
        openb::pods(&fixtures("openb").join(name)).unwrap().collect::<Result<_, _>>().unwrap()
    };
    let full = pods("pods.csv");
    let life = full[1].life.as_ref().unwrap();
    assert_eq!(life.models, ["T4", "V100M32"]);
    assert_eq!((life.created, life.deleted, life.scheduled), (10, 90, None));
    assert_eq!(full[2].life.as_ref().unwrap().qos, openb::Qos::Burstable);
    assert_eq!((pods("needs.csv")[0].gpu_milli, &pods("needs.csv")[0].life), (460, &None));
}

#[test]
fn a_bad_cell_is_named_with_file_line_column_and_what_was_expected() {
    let jobs = "philly_jobs.csv:3: column";
    for (row, expected) in [
        ("2017-10-02 09:00:00,60.0,four,60.0,aa11", "num_gpus: \"four\" is not a whole number"),
        ("2017-10-02 09:00:00,60.0,1.0,60.0,aa11", "num_gpus: \"1.0\" is not a whole number"),
        ("2017-10-02 09:00:00,60.0,0,0.0,aa11", "num_gpus: \"0\" is outside 1 to 1024"),
        (
            "2017-10-02 09:00:00,60.0,-1,60.0,aa11",
            "num_gpus: \"-1\" is negative, expected 1 to 1024",
        ),
        ("2017-10-02 09:00:00,60.0,99999,1.0,aa11", "num_gpus: \"99999\" is outside 1 to 1024"),
        (
            "2017-10-02 09:00:00,60.0,99999999999999999999999,1.0,aa11",
            "num_gpus: \"99999999999999999999999\" is outside 1 to 1024",
        ),
        (
            "2017-10-02 09:00:00,-60.0,1,60.0,aa11",
            "duration: \"-60.0\" is negative, expected 1 to 315360000",
        ),
        ("2017-10-02 09:00:00,0.0,1,0.0,aa11", "duration: \"0.0\" is outside 1 to 315360000"),
        ("2017-10-02 09:00:00,1e3,1,60.0,aa11", "duration: \"1e3\" is not a number"),
        ("2017-10-02 09:00:00,nan,1,60.0,aa11", "duration: \"nan\" is not a number"),
        ("2017-10-02 09:00:00,,1,60.0,aa11", "duration: \"\" is not a number"),
        (
            "2017-10-02 09:00:00,60.0,2,60.0,aa11",
            "gpu_time: \"60.0\" contradicts its row: duration × num_gpus is 120",
        ),
        (
            "2017-13-02 09:00:00,60.0,1,60.0,aa11",
            "timestamp: \"2017-13-02 09:00:00\" is not a time like 2017-10-03 14:05:59",
        ),
        (
            "1506949200,60.0,1,60.0,aa11",
            "timestamp: \"1506949200\" is not a time like 2017-10-03 14:05:59",
        ),
        (
            "2017-03-12 02:30:00,60.0,1,60.0,aa11",
            "timestamp: \"2017-03-12 02:30:00\" does not exist in America/New_York, the clocks were set \
             forward",
        ),
        (
            "2017-10-02 09:00:00,60.0,1,60.0,",
            "cluster: \"\" is not a name of 1 to 32 letters, digits and hyphens",
        ),
        (
            "2017-10-02 09:00:00,60.0,1,60.0,../x",
            "cluster: \"../x\" is not a name of 1 to 32 letters, digits and hyphens",
        ),
    ] {
        assert_eq!(
            message_for_jobs(format!("{HEADER}{GOOD_ROW}{row}\n")),
            format!("{jobs} {expected}")
        );
    }
}

#[test]
fn hostile_cells_cannot_flood_or_forge_a_message() {
    let long = message_for_jobs(format!("{HEADER}x{},60.0,1,60.0,a\n", "9".repeat(5_000)));
    assert!(long.len() < 200, "{long}");
    let control = message_for_jobs(format!("{HEADER}\u{1b}[2J,60.0,1,60.0,a\n"));
    assert!(control.contains("\\u{1b}[2J"), "{control}");
    let mut not_text = format!("{HEADER}2017-10-02 09:00:00,60.0,1,60.0,").into_bytes();
    not_text.extend([0xFF, 0xFE, b'\n']);
    assert!(message_for_jobs(not_text).ends_with("is not UTF-8 text"));
}

#[test]
fn a_row_of_the_wrong_width_is_refused() {
    assert_eq!(
        message_for_jobs(format!("{HEADER}{GOOD_ROW}2017-10-02 09:00:00,60.0,1\n")),
        "philly_jobs.csv:3: the row has 3 columns, expected 5"
    );
}

#[test]
fn wrong_headers_empty_files_and_other_packings_are_told_apart() {
    assert_eq!(
        message_for_jobs("a,b\n1,2\n"),
        "philly_jobs.csv:1: the header is \"a,b\", expected \"timestamp,duration,num_gpus,gpu_time,cluster\""
    );
    assert_eq!(message_for_jobs(""), "philly_jobs.csv is empty: fetch it again");
    assert_eq!(message_for_jobs("\n\n"), "philly_jobs.csv is empty: fetch it again");
    assert_eq!(message_for_jobs(HEADER), "philly_jobs.csv has a header and no rows");
    assert_eq!(
        message_for_jobs([0x1F, 0x8B, 8, 0]),
        "philly_jobs.csv is packed with gzip: unpack it first, only xz and plain text are read"
    );
    assert_eq!(
        message_for_jobs("x".repeat(200_000)),
        "philly_jobs.csv:1: the line is longer than 65536 bytes"
    );
}

#[test]
fn carriage_returns_quotes_and_a_byte_order_mark_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("\u{feff}{HEADER}\"2017-10-02 09:00:00\",60.0,1,60.0,\"aa11\"\n")
        .replace('\n', "\r\n");
    fs::write(folder.path().join("philly_jobs.csv"), text).unwrap();
    assert_eq!(philly_jobs(folder.path()).unwrap()[0].vc.as_str(), "aa11");
}

#[test]
fn missing_files_and_folders_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let error = philly::jobs_file(folder.path()).unwrap_err();
    assert!(matches!(error, Error::Missing { .. }));
    assert!(
        error.to_string().contains("no philly_jobs.csv.xz and no philly_jobs.csv in"),
        "{error}"
    );
    assert!(error.to_string().contains("sublet-sim generate"), "{error}");
    let error = philly::jobs_file(&folder.path().join("nowhere")).unwrap_err();
    assert!(matches!(error, Error::NotAFolder { .. }));
    fs::create_dir(folder.path().join("philly_jobs.csv")).unwrap();
    let error = philly_jobs(folder.path()).unwrap_err();
    assert!(matches!(error, Error::Open { .. }), "{error}");
    assert!(error.source().is_some());
}

#[test]
fn an_xz_file_cut_anywhere_or_damaged_is_refused() {
    let whole = fs::read(fixtures("philly-xz").join("philly_jobs.csv.xz")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("philly_jobs.csv.xz");
    for length in 0..whole.len() {
        fs::write(&file, &whole[..length]).unwrap();
        let error = philly_jobs(folder.path()).expect_err("cut short");
        let is_right = match length {
            0 => matches!(error, Error::Empty { .. }),
            _ => matches!(error, Error::Compressed { .. }),
        };
        assert!(is_right, "cut at {length}: {error}");
    }
    for position in 6..whole.len() {
        let mut damaged = whole.clone();
        damaged[position] ^= 0x10;
        fs::write(&file, &damaged).unwrap();
        assert!(philly_jobs(folder.path()).is_err(), "flip at {position} went unseen");
    }
    fs::write(&file, "plain text").unwrap();
    assert!(matches!(philly_jobs(folder.path()).unwrap_err(), Error::NotXz { .. }));
}

#[test]
fn contradictions_between_columns_are_refused_in_the_other_formats_too() {
    let folder = tempfile::tempdir().unwrap();
    let check =
        |name: &str, text: String, load: &dyn Fn(&Path) -> Option<Error>, expected: &str| {
            let file = folder.path().join(name);
            fs::write(&file, text).unwrap();
            let error = load(&file).expect("the file is bad").to_string();
            assert!(error.contains(expected), "{error}");
        };
    let text = |name: &str| fs::read_to_string(fixtures("").join(name)).unwrap();
    let helios_error =
        |_: &Path| helios::minutes(folder.path(), "earth_vc_minute").ok()?.find_map(Result::err);
    let node_error = |file: &Path| openb::nodes(file).ok()?.find_map(Result::err);
    let pod_error = |file: &Path| openb::pods(file).ok()?.find_map(Result::err);
    check(
        "earth_vc_minute.csv",
        text("helios/earth_vc_minute.csv").replace(",16,10,8,6,", ",16,10,8,7,"),
        &helios_error,
        "csv:2: column total_gpu_num: \"16\" contradicts its row: running_gpu_num + idle_gpu_num is 17",
    );
    check(
        "earth_vc_minute.csv",
        text("helios/earth_vc_minute.csv").replace("0.625", "1.625"),
        &helios_error,
        "csv:2: column gpu_utilization: \"1.625\" is outside 0 to 1",
    );
    check(
        "nodes.csv",
        text("openb/nodes.csv").replace(",8,T4", ",8,"),
        &node_error,
        "csv:3: column model",
    );
    check(
        "pods.csv",
        text("openb/pods.csv").replace(",8,1000,", ",8,500,"),
        &pod_error,
        "csv:3: column gpu_milli: \"500\" is outside 1000 to 1000",
    );
    check(
        "pods.csv",
        text("openb/pods.csv").replace(",10,90,", ",10,9,"),
        &pod_error,
        "csv:3: column deletion_time: \"9\" is outside 10 to",
    );
    check(
        "pods.csv",
        text("openb/pods.csv").replace("Burstable", "Best"),
        &pod_error,
        "csv:4: column qos: \"Best\" is not one of LS, Burstable, BE, Guaranteed",
    );
}

#[test]
fn a_virtual_cluster_listed_twice_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("philly_vc_nodes.csv"), "vc,node num\naa11,2\naa11,3\n").unwrap();
    let error = philly::nodes(folder.path()).unwrap_err().to_string();
    assert!(
        error.ends_with("philly_vc_nodes.csv:3: column vc: \"aa11\" is listed twice"),
        "{error}"
    );
}

#[test]
fn the_public_philly_trace_has_the_rows_its_readme_promises() {
    let Some(folder) = shared_data("philly-2017") else { return };
    let jobs = philly_jobs(&folder).unwrap();
    assert_eq!(jobs.len(), 57_572);
    assert!(jobs.windows(2).all(|pair| pair[0].submit <= pair[1].submit), "in order of submission");
    assert_eq!(philly::nodes(&folder).unwrap().len(), 11);
    let attempts: Result<Vec<_>, _> = philly::attempts(&folder).unwrap().collect();
    assert_eq!(attempts.unwrap().len(), 97_697);
}

#[test]
fn the_public_helios_trace_has_the_rows_its_readme_promises() {
    let Some(folder) = shared_data("helios-earth-2020") else { return };
    let mut minutes_per_vc = BTreeMap::<_, u32>::new();
    for minute in helios::minutes(&folder, "earth_vc_minute").unwrap() {
        *minutes_per_vc.entry(minute.unwrap().vc).or_default() += 1;
    }
    assert_eq!(minutes_per_vc.len(), 16);
    assert!(minutes_per_vc.values().all(|&minutes| minutes == 22 * 24 * 60));
}

#[test]
fn the_public_openb_trace_has_the_rows_its_readme_promises() {
    let Some(folder) = shared_data("alibaba-openb-2023") else { return };
    let count = |name| {
        let nodes: Result<Vec<_>, _> = openb::nodes(&folder.join(name)).unwrap().collect();
        nodes.unwrap().len()
    };
    assert_eq!(count("openb_node_list_all_node.csv"), 1_523);
    assert_eq!(count("openb_node_list_gpu_node.csv"), 1_213);
    let lists: BTreeSet<PathBuf> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_str().unwrap().contains("openb_pod_list"))
        .collect();
    assert_eq!(lists.len(), 24);
    for list in lists {
        let pods: Result<Vec<_>, _> = openb::pods(&list).unwrap().collect();
        let rows = pods.unwrap().len();
        assert!((7_064..=10_094).contains(&rows), "{}: {rows}", list.display());
    }
}
