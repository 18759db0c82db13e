//! Judges a FOCUS 1.2 file in CSV: columns, formats, null rules, allowed values, periods.
//!
//! It reads one row at a time. An *error* breaks a rule of the specification; a *warning* is allowed and
//! most likely not meant. Rules that need more than one row (sums, price catalogues) are not checked.
//! Source: <https://focus.finops.org/focus-specification/v1-2/>, read in 2026.

use std::collections::BTreeSet;
use std::io;

use jiff::Timestamp as Instant;

use super::focus::MANDATORY;

/// Further columns of FOCUS 1.2 that a file may have.
const OPTIONAL: [&str; 36] = [
    "AvailabilityZone",
    "BillingAccountType",
    "CapacityReservationId",
    "CapacityReservationStatus",
    "ChargeFrequency",
    "CommitmentDiscountCategory",
    "CommitmentDiscountId",
    "CommitmentDiscountName",
    "CommitmentDiscountQuantity",
    "CommitmentDiscountStatus",
    "CommitmentDiscountType",
    "CommitmentDiscountUnit",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedUnitPrice",
    "InvoiceId",
    "ListUnitPrice",
    "PricingCategory",
    "PricingCurrency",
    "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyEffectiveCost",
    "PricingCurrencyListUnitPrice",
    "RegionId",
    "RegionName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "SkuPriceDetails",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "SubAccountType",
    "Tags",
];
const COSTS: [&str; 4] = ["BilledCost", "ContractedCost", "EffectiveCost", "ListCost"];
const NUMBERS: [&str; 8] = [
    "CommitmentDiscountQuantity",
    "ConsumedQuantity",
    "ContractedUnitPrice",
    "ListUnitPrice",
    "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyEffectiveCost",
    "PricingCurrencyListUnitPrice",
    "PricingQuantity",
];
/// Texts that are never null.
const TEXTS: [&str; 6] = [
    "BillingAccountId",
    "InvoiceIssuerName",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
];
const CATEGORIES: [&str; 5] = ["Usage", "Purchase", "Tax", "Credit", "Adjustment"];
const FREQUENCIES: [&str; 3] = ["One-Time", "Recurring", "Usage-Based"];
const PRICINGS: [&str; 4] = ["Standard", "Dynamic", "Committed", "Other"];
const SERVICES: [&str; 19] = [
    "AI and Machine Learning",
    "Analytics",
    "Business Applications",
    "Compute",
    "Databases",
    "Developer Tools",
    "Multicloud",
    "Identity",
    "Integration",
    "Internet of Things",
    "Management and Governance",
    "Media",
    "Migration",
    "Mobile",
    "Networking",
    "Security",
    "Storage",
    "Web",
    "Other",
];

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Allowed, and most likely not meant.
    Warning,
    /// Breaks a rule.
    Error,
}

/// Which rule a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum Rule {
    /// A mandatory column is missing.
    #[error("the column is mandatory and missing")]
    ColumnMissing,
    /// A column stands there twice.
    #[error("the column stands there twice")]
    ColumnTwice,
    /// A column is neither FOCUS's nor a custom one.
    #[error("not a column of FOCUS 1.2: columns of one's own begin with x_")]
    ColumnUnknown,
    /// A row has more or fewer cells than the head.
    #[error("the row has another number of cells than the head")]
    Cells,
    /// A cell that must not be null is.
    #[error("must not be null here")]
    Null,
    /// A cell that must be null is not.
    #[error("must be null here")]
    NotNull,
    /// Not a plain number.
    #[error("a number is written as 1204.80 or 2E0: no currency, no separators, no plus sign")]
    Number,
    /// Not an instant in UTC.
    #[error("a time is written in UTC, as 2026-03-02T10:00:00Z")]
    Time,
    /// The end of a period is its last second.
    #[error("the end of a period is the first instant behind it, not its last second")]
    EndInclusive,
    /// A period that ends before it begins, or where it begins.
    #[error("a period must end after it begins")]
    EndBeforeStart,
    /// A charge period that is not within its billing period.
    #[error("the charge period is outside the billing period")]
    OutsidePeriod,
    /// Not an allowed value.
    #[error("not one of the values that are allowed")]
    NotAllowed,
    /// Not null or `Correction`.
    #[error("null or Correction")]
    Class,
    /// Not a currency code.
    #[error("a currency is an ISO 4217 code of three capital letters")]
    Currency,
    /// A charge below zero that is neither a credit nor a correction.
    #[error("a charge below zero should be a Credit or a Correction")]
    Negative,
    /// Not a JSON object.
    #[error("tags are a JSON object")]
    Tags,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The line of the file in which the row begins; 1 is the head.
    pub line: u64,
    /// Which column.
    pub column: String,
    /// How bad it is.
    pub severity: Severity,
    /// Which rule.
    pub rule: Rule,
    /// What stands there, at most 40 characters of it.
    pub value: String,
}

/// What was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checked {
    /// Rows behind the head.
    pub rows: u64,
    /// How many errors.
    pub errors: u64,
    /// How many warnings.
    pub warnings: u64,
}

/// Reads a file and hands over what is not as it should be, in the order of its rows.
///
/// # Errors
/// It cannot be read, or is not UTF-8.
pub fn check(from: impl io::Read, mut found: impl FnMut(Finding)) -> io::Result<Checked> {
    let mut table = csv::ReaderBuilder::new().flexible(true).from_reader(from);
    let mut checked = Checked::default();
    let head = table.headers()?.clone();
    let mut report = |line: u64, (column, value): (&str, &str), severity, rule| {
        match severity {
            Severity::Error => checked.errors = checked.errors.saturating_add(1),
            Severity::Warning => checked.warnings = checked.warnings.saturating_add(1),
        }
        let value = value.chars().take(40).collect();
        found(Finding { line, column: column.to_owned(), severity, rule, value });
    };
    check_head(&head, &mut |column, rule| report(1, (column, ""), Severity::Error, rule));
    let (mut cells, mut rows) = (csv::StringRecord::new(), 0_u64);
    while table.read_record(&mut cells)? {
        rows = rows.saturating_add(1);
        let line = cells.position().map_or(0, csv::Position::line);
        if cells.len() != head.len() {
            report(line, ("", ""), Severity::Error, Rule::Cells);
            continue;
        }
        let row = Row { head: &head, cells: &cells };
        row.check(&mut |column, severity, rule| {
            report(line, (column, row.get(column)), severity, rule);
        });
    }
    checked.rows = rows;
    Ok(checked)
}

fn check_head(head: &csv::StringRecord, report: &mut dyn FnMut(&str, Rule)) {
    let mut seen = BTreeSet::new();
    for column in head {
        if !seen.insert(column) {
            report(column, Rule::ColumnTwice);
        }
        let is_known = MANDATORY.contains(&column) || OPTIONAL.contains(&column);
        if !is_known && !column.starts_with("x_") {
            report(column, Rule::ColumnUnknown);
        }
    }
    for column in MANDATORY.iter().filter(|column| !seen.contains(*column)) {
        report(column, Rule::ColumnMissing);
    }
}

/// Says that a column of the row breaks a rule.
type Report<'a> = dyn FnMut(&'static str, Severity, Rule) + 'a;

struct Row<'a> {
    head: &'a csv::StringRecord,
    cells: &'a csv::StringRecord,
}

impl Row<'_> {
    /// A cell; empty if it is null or its column is not there.
    fn get(&self, column: &str) -> &str {
        let place = self.head.iter().position(|name| name == column);
        place.and_then(|place| self.cells.get(place)).unwrap_or("")
    }

    /// A cell of a mandatory column; none if the column is missing, which was said for the head.
    fn mandatory(&self, column: &str) -> Option<&str> {
        self.head.iter().any(|name| name == column).then(|| self.get(column))
    }

    fn check(&self, report: &mut Report<'_>) {
        self.texts(report);
        self.numbers(report);
        self.quantity(report);
        self.times(report);
    }

    fn texts(&self, report: &mut Report<'_>) {
        for column in TEXTS {
            if self.mandatory(column) == Some("") {
                report(column, Severity::Error, Rule::Null);
            }
        }
        for column in ["BillingAccountName", "ChargeDescription"] {
            if self.mandatory(column) == Some("") {
                report(column, Severity::Warning, Rule::Null);
            }
        }
        let allowed: [(&'static str, &[&str]); 2] =
            [("ChargeFrequency", &FREQUENCIES), ("PricingCategory", &PRICINGS)];
        for (column, values) in allowed {
            let value = self.get(column);
            if !value.is_empty() && !values.contains(&value) {
                report(column, Severity::Error, Rule::NotAllowed);
            }
        }
        if self.mandatory("ChargeCategory").is_some_and(|value| !CATEGORIES.contains(&value)) {
            report("ChargeCategory", Severity::Error, Rule::NotAllowed);
        }
        let service = self.get("ServiceCategory");
        if !service.is_empty() && !SERVICES.contains(&service) {
            report("ServiceCategory", Severity::Error, Rule::NotAllowed);
        }
        if !matches!(self.get("ChargeClass"), "" | "Correction") {
            report("ChargeClass", Severity::Error, Rule::Class);
        }
        let is_code = |text: &str| text.len() == 3 && text.bytes().all(|b| b.is_ascii_uppercase());
        if self.mandatory("BillingCurrency").is_some_and(|text| !is_code(text)) {
            report("BillingCurrency", Severity::Error, Rule::Currency);
        }
        let tags = self.get("Tags");
        let is_object = |text| serde_json::from_str::<serde_json::Map<_, _>>(text).is_ok();
        if !tags.is_empty() && !is_object(tags) {
            report("Tags", Severity::Error, Rule::Tags);
        }
    }

    fn numbers(&self, report: &mut Report<'_>) {
        for column in COSTS {
            match self.mandatory(column) {
                Some("") => report(column, Severity::Error, Rule::Null),
                Some(number) if !is_number(number) => {
                    report(column, Severity::Error, Rule::Number);
                }
                Some(_) | None => {}
            }
        }
        for column in NUMBERS {
            let number = self.get(column);
            if !number.is_empty() && !is_number(number) {
                report(column, Severity::Error, Rule::Number);
            }
        }
        let is_charge = matches!(self.get("ChargeCategory"), "Usage" | "Purchase");
        let is_below = self.get("BilledCost").starts_with('-');
        if is_below && is_charge && self.get("ChargeClass") != "Correction" {
            report("BilledCost", Severity::Warning, Rule::Negative);
        }
    }

    /// Usage and purchases have a quantity with its unit unless they are corrections; taxes have none.
    fn quantity(&self, report: &mut Report<'_>) {
        let category = self.get("ChargeCategory");
        let is_correction = self.get("ChargeClass") == "Correction";
        for column in ["PricingQuantity", "PricingUnit"] {
            let Some(value) = self.mandatory(column) else { continue };
            let must_be = matches!(category, "Usage" | "Purchase") && !is_correction;
            if must_be && value.is_empty() {
                report(column, Severity::Error, Rule::Null);
            }
            if category == "Tax" && !value.is_empty() {
                report(column, Severity::Error, Rule::NotNull);
            }
        }
    }

    fn times(&self, report: &mut Report<'_>) {
        let billing = self.period(("BillingPeriodStart", "BillingPeriodEnd"), report);
        let charge = self.period(("ChargePeriodStart", "ChargePeriodEnd"), report);
        for (column, severity) in
            [("BillingPeriodEnd", Severity::Error), ("ChargePeriodEnd", Severity::Warning)]
        {
            if self.get(column).ends_with("T23:59:59Z") {
                report(column, severity, Rule::EndInclusive);
            }
        }
        if let (Some(billing), Some(charge)) = (billing, charge)
            && (charge.0 < billing.0 || charge.1 > billing.1)
            && self.get("ChargeClass") != "Correction"
        {
            report("ChargePeriodStart", Severity::Warning, Rule::OutsidePeriod);
        }
    }

    /// Both ends of a period, if they can be read.
    fn period(
        &self,
        (start, end): (&'static str, &'static str),
        report: &mut Report<'_>,
    ) -> Option<(Instant, Instant)> {
        let mut read = |column| {
            let text = self.mandatory(column)?;
            let instant = utc(text);
            if instant.is_none() {
                let rule = if text.is_empty() { Rule::Null } else { Rule::Time };
                report(column, Severity::Error, rule);
            }
            instant
        };
        let (from, until) = (read(start), read(end));
        let (from, until) = (from?, until?);
        if until <= from {
            report(end, Severity::Error, Rule::EndBeforeStart);
            return None;
        }
        Some((from, until))
    }
}

/// An instant in the one form that FOCUS allows.
fn utc(text: &str) -> Option<Instant> {
    let is_form = text.len() == 20 && text.ends_with('Z') && text.as_bytes().get(10) == Some(&b'T');
    if is_form { text.parse().ok() } else { None }
}

/// Digits, perhaps with a minus sign, a fraction and an exponent.
fn is_number(text: &str) -> bool {
    let are_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let magnitude = mantissa.strip_prefix('-').unwrap_or(mantissa);
    let (whole, fraction) = match magnitude.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (magnitude, None),
    };
    let is_exponent = |text: &str| are_digits(text.strip_prefix(['+', '-']).unwrap_or(text));
    are_digits(whole) && fraction.is_none_or(are_digits) && exponent.is_none_or(is_exponent)
}
