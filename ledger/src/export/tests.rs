//! Tests of exports and of the judge of FOCUS files, case D26 among them.

use std::collections::BTreeMap;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use sublet_protocol::leases::EndReason;
use sublet_protocol::money::Currency;
use sublet_protocol::units::Timestamp;

use super::check::{Checked, Finding, Rule, Severity, check};
use super::table::{Places, decimal};
use super::{Format, Layout, MANDATORY, Names, Writer};
use crate::charges::Charge;
use crate::charges::tests::{HOUR, MARCH, Wish, borrower, charges};

const APRIL: u64 = MARCH + 31 * 24 * HOUR;

fn names() -> Names {
    let tenants = BTreeMap::from([(borrower(), "=Zürich Vision, \"Ltd\"".to_owned())]);
    Names { issuer: "Campus Compute".to_owned(), tenants }
}

fn export(charges: &[Charge], form: (Layout, Format), span: (u64, u64)) -> (Vec<u8>, u64) {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes, form, Currency::EUR, names()).unwrap();
    for charge in charges {
        writer.charge(charge, Timestamp::new(span.0), Timestamp::new(span.1)).unwrap();
    }
    let rows = writer.finish().unwrap();
    (bytes, rows)
}

fn focus(charges: &[Charge]) -> Vec<BTreeMap<String, String>> {
    rows(&export(charges, (Layout::Focus, Format::Csv), (0, u64::MAX)).0)
}

fn rows(bytes: &[u8]) -> Vec<BTreeMap<String, String>> {
    let mut table = csv::Reader::from_reader(bytes);
    let head = table.headers().unwrap().clone();
    let cells = table.records().map(|row| row.unwrap());
    cells
        .map(|row| head.iter().zip(&row).map(|(h, cell)| (h.to_owned(), cell.to_owned())).collect())
        .collect()
}

fn judged(bytes: &[u8]) -> (Checked, Vec<Finding>) {
    let mut findings = Vec::new();
    let checked = check(bytes, |finding| findings.push(finding)).unwrap();
    (checked, findings)
}

/// Case D26: l-1 is two hours of an H100 at 2.40, l-2 three sevenths of an A100 (429 thousandths) over
/// the end of March at 1.40.
fn d26() -> Vec<Charge> {
    let first = Wish::new(1, MARCH + 34 * HOUR, 2 * HOUR, 2_400_000);
    let second = Wish { gpu: 429, ..Wish::new(2, APRIL - HOUR, 2 * HOUR, 1_400_000) };
    charges(&[first, second])
}

#[test]
fn case_d26_a_lease_over_a_month_is_two_rows_that_add_up() {
    let found = focus(&d26());
    assert_eq!(found.len(), 3);
    let shown = |row: usize, column: &str| found[row][column].clone();
    assert_eq!(shown(0, "BilledCost"), "4.80");
    assert_eq!(
        (shown(0, "PricingQuantity"), shown(0, "PricingUnit")),
        ("2".into(), "GPU-Hours".into())
    );
    assert_eq!(
        (shown(0, "ChargeCategory"), shown(0, "ChargeClass")),
        ("Usage".into(), String::new())
    );
    assert_eq!(shown(0, "ChargePeriodStart"), "2026-03-02T10:00:00Z");
    assert_eq!(shown(0, "ChargePeriodEnd"), "2026-03-02T12:00:00Z");
    assert_eq!(shown(0, "BillingPeriodEnd"), "2026-04-01T00:00:00Z");
    assert_eq!(shown(0, "BillingAccountName"), "'=Zürich Vision, \"Ltd\"");
    assert_eq!(shown(1, "ChargePeriodEnd"), "2026-04-01T00:00:00Z");
    assert_eq!(shown(2, "ChargePeriodStart"), "2026-04-01T00:00:00Z");
    assert_eq!(shown(2, "BillingPeriodStart"), "2026-04-01T00:00:00Z");
    assert_eq!(
        (shown(1, "BilledCost"), shown(2, "BilledCost")),
        ("0.6006".into(), "0.6006".into())
    );
    assert_eq!(d26()[1].settlement.cost.get(), 1_201_200);
    for column in MANDATORY {
        assert!(found[0].contains_key(column), "{column}");
    }
}

#[test]
fn our_own_export_has_nothing_to_complain_about() {
    let odd = Wish { gpu: 142, ..Wish::new(5, MARCH + 17, 1_234_567, 1_990_001) };
    let blink = Wish::new(6, MARCH + 1, 5, 3_600_000_000);
    let excused = Wish { reason: EndReason::Reclaimed, ..Wish::new(7, MARCH, 60_000, 1_000_000) };
    let all = [d26(), charges(&[odd, blink, excused, Wish::new(8, MARCH, 0, 1)])].concat();
    let (bytes, rows) = export(&all, (Layout::Focus, Format::Csv), (0, u64::MAX));
    let (checked, findings) = judged(&bytes);
    assert_eq!(findings, []);
    // What costs nothing since nothing is billed has no row.
    assert_eq!((checked, rows), (Checked { rows: 5, errors: 0, warnings: 0 }, 5));
}

#[test]
fn what_comes_after_a_close_is_a_correction_of_the_next_period() {
    let mut late = d26().remove(1);
    late.closed_until = Timestamp::new(APRIL);
    let found = focus(&[late]);
    assert_eq!(found.len(), 2);
    let classes: Vec<_> = found.iter().map(|row| row["ChargeClass"].as_str()).collect();
    assert_eq!(classes, ["Correction", ""]);
    for row in &found {
        assert_eq!(row["BillingPeriodStart"], "2026-04-01T00:00:00Z");
    }
    assert_eq!(found[0]["ChargePeriodStart"], "2026-03-31T23:00:00Z");
}

#[test]
fn a_month_has_what_is_booked_in_it_and_no_more() {
    let of = |span| export(&d26(), (Layout::Charges, Format::Csv), span);
    let [march, april, all] = [(MARCH, APRIL), (APRIL, 2 * APRIL), (0, u64::MAX)].map(of);
    assert_eq!((march.1, april.1, all.1), (2, 1, 3));
    let rows = rows(&all.0);
    assert_eq!(rows[1]["end"], "2026-04-01T00:00:00.000Z");
    assert_eq!((rows[0]["cost"].as_str(), rows[0]["fee"].as_str()), ("4.80", "0.24"));
    assert_eq!(rows[0]["earned"], "4.56");
    assert_eq!(rows[0].len(), 29);
}

#[test]
fn a_parquet_file_holds_the_same_rows() {
    let many: Vec<Charge> = std::iter::repeat_n(d26(), 6_000).flatten().collect();
    let (bytes, rows) = export(&many, (Layout::Focus, Format::Parquet), (0, u64::MAX));
    let file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut &file, &bytes).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let metadata = reader.metadata();
    assert_eq!((rows, metadata.file_metadata().num_rows()), (18_000, 18_000));
    assert_eq!(metadata.num_row_groups(), 2, "rows are written in groups");
    let schema = metadata.file_metadata().schema_descr();
    let place = |name: &str| {
        (0..schema.num_columns()).find(|at| schema.column(*at).name() == name).unwrap()
    };
    let first = reader.get_row_iter(None).unwrap().next().unwrap().unwrap();
    assert_eq!(first.get_string(place("BillingAccountName")).unwrap(), "=Zürich Vision, \"Ltd\"");
    let cost = first.get_decimal(place("BilledCost")).unwrap();
    assert_eq!((cost.scale(), cost.data()), (6, &4_800_000_i64.to_be_bytes()[..]));
    let start = first.get_timestamp_millis(place("ChargePeriodStart")).unwrap();
    assert_eq!(u64::try_from(start).unwrap(), MARCH + 34 * HOUR);
    assert!(first.get_string(place("ChargeClass")).is_err(), "null is null");
}

#[test]
fn decimals_have_no_more_places_than_they_need() {
    for (millionths, places, text) in [
        (4_800_000, Places::Two, "4.80"),
        (2_000_000, Places::None, "2"),
        (2_500_000, Places::None, "2.5"),
        (1, Places::Two, "0.000001"),
        (-1_500_000, Places::Two, "-1.50"),
        (0, Places::Two, "0.00"),
    ] {
        assert_eq!(decimal(millionths, places), text);
    }
}

/// A good row, a change to it, and what is found.
type BadRow = (&'static str, &'static str, Option<(Severity, Rule)>);

const BAD_ROWS: [BadRow; 22] = [
    ("BilledCost", "4.80", None),
    ("BilledCost", "€4.80", Some((Severity::Error, Rule::Number))),
    ("BilledCost", "1,204.80", Some((Severity::Error, Rule::Number))),
    ("ListCost", "+5.00", Some((Severity::Error, Rule::Number))),
    ("ListCost", "", Some((Severity::Error, Rule::Null))),
    ("ListCost", "1e", Some((Severity::Error, Rule::Number))),
    ("ListCost", ".5", Some((Severity::Error, Rule::Number))),
    ("ChargePeriodStart", "2026-03-02T11:00:00+01:00", Some((Severity::Error, Rule::Time))),
    ("ChargePeriodStart", "2026-03-02 10:00:00", Some((Severity::Error, Rule::Time))),
    ("ChargePeriodStart", "2026-03-02T12:00:00Z", Some((Severity::Error, Rule::EndBeforeStart))),
    ("BillingPeriodEnd", "2026-03-31T23:59:59Z", Some((Severity::Error, Rule::EndInclusive))),
    ("ChargeCategory", "Lease", Some((Severity::Error, Rule::NotAllowed))),
    ("ChargeClass", "None", Some((Severity::Error, Rule::Class))),
    ("PricingQuantity", "", Some((Severity::Error, Rule::Null))),
    ("PricingQuantity", "2E0", None),
    ("PricingQuantity", "2.5e-3", None),
    ("ChargePeriodEnd", "2026-04-01T01:00:00Z", Some((Severity::Warning, Rule::OutsidePeriod))),
    ("BillingCurrency", "euro", Some((Severity::Error, Rule::Currency))),
    ("BilledCost", "-4.80", Some((Severity::Warning, Rule::Negative))),
    ("ServiceCategory", "GPU", Some((Severity::Error, Rule::NotAllowed))),
    ("PublisherName", "", Some((Severity::Error, Rule::Null))),
    ("ChargeDescription", "", Some((Severity::Warning, Rule::Null))),
];

const GOOD: [&str; 21] = [
    "4.80",
    "acct-7",
    "Zürich Vision",
    "EUR",
    "2026-04-01T00:00:00Z",
    "2026-03-01T00:00:00Z",
    "Usage",
    "",
    "H100 lease, 2 GPU-hours",
    "2026-03-02T12:00:00Z",
    "2026-03-02T10:00:00Z",
    "4.80",
    "4.80",
    "Campus Compute",
    "5.00",
    "2",
    "GPU-Hours",
    "Campus Compute",
    "Campus Compute",
    "Compute",
    "Idle GPU lease",
];

fn file(rows: &[Vec<&str>]) -> Vec<u8> {
    let mut table = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
    table.write_record(MANDATORY).unwrap();
    rows.iter().for_each(|row| table.write_record(row).unwrap());
    table.into_inner().unwrap()
}

#[test]
fn case_d26_each_bad_row_is_found_by_its_column() {
    for (column, value, expected) in BAD_ROWS {
        let mut row = GOOD.to_vec();
        row[MANDATORY.iter().position(|name| *name == column).unwrap()] = value;
        let (_, findings) = judged(&file(&[row]));
        let found: Vec<_> = findings.iter().map(|it| (it.severity, it.rule)).collect();
        assert_eq!(found, Vec::from_iter(expected), "{column} = {value:?}: {findings:?}");
        assert!(findings.iter().all(|it| it.line == 2 && it.column.starts_with(&column[..6])));
    }
}

#[test]
fn a_file_without_its_columns_or_with_foreign_ones_is_judged() {
    let (checked, findings) = judged(b"BilledCost,x_case,Price,BilledCost\n1,,,1\n1,2\n");
    let of = |rule| findings.iter().filter(|it| it.rule == rule).count();
    assert_eq!(
        (of(Rule::ColumnMissing), of(Rule::ColumnUnknown), of(Rule::ColumnTwice)),
        (20, 1, 1)
    );
    assert_eq!((of(Rule::Cells), checked.rows), (1, 2));
    let (checked, _) = judged(&file(&[]));
    assert_eq!(checked, Checked::default());
}

#[test]
fn taxes_have_no_quantity_and_corrections_need_none() {
    let mut tax = GOOD.to_vec();
    tax[6] = "Tax";
    let (_, findings) = judged(&file(&[tax]));
    assert!(findings.iter().all(|it| it.rule == Rule::NotNull) && findings.len() == 2);
    let mut correction = GOOD.to_vec();
    (correction[0], correction[7], correction[15]) = ("-4.80", "Correction", "");
    assert_eq!(judged(&file(&[correction])).1, []);
}
