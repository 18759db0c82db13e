//! Who may import whom, read from `cargo metadata`.
//!
//! ```text
//! protocol ◀─ core ◀─ broker ─▶ ledger ─▶ protocol        agent ─▶ predictor ─▶ protocol
//! simulations ─▶ core, ledger, predictor, agent, protocol (broker with feature `sim` only)
//! sublet (root) ─▶ everything          nobody ─▶ sublet, simulations
//! ```

use std::collections::BTreeSet;

use cargo_metadata::{Dependency, DependencyKind, MetadataCommand, Package};

use crate::tree::{Violation, assert_clean, root};

/// A library that stands in for the driver's. Only tests may depend on it.
const TEST_DOUBLE: &str = "sublet-fake-nvml";

/// A package and those of ours it may depend on, in any section of its manifest.
const BORDERS: [(&str, &[&str]); 8] = [
    ("sublet-protocol", &[]),
    ("sublet-core", &["sublet-protocol"]),
    ("sublet-ledger", &["sublet-protocol"]),
    ("sublet-predictor", &["sublet-protocol"]),
    ("sublet-broker", &["sublet-core", "sublet-ledger", "sublet-protocol"]),
    ("sublet-agent", &["sublet-predictor", "sublet-protocol", TEST_DOUBLE]),
    (
        "sublet-simulations",
        &["sublet-core", "sublet-ledger", "sublet-predictor", "sublet-agent", "sublet-protocol"],
    ),
    (
        "sublet",
        &[
            "sublet-protocol",
            "sublet-core",
            "sublet-ledger",
            "sublet-predictor",
            "sublet-broker",
            "sublet-agent",
            "sublet-simulations",
            TEST_DOUBLE,
        ],
    ),
];

/// Heavy dependencies and the one package whose shipped code may use each.
const HEAVY: [(&str, &str); 10] = [
    ("openraft", "sublet-broker"),
    ("raft-log", "sublet-broker"),
    ("sled", "sublet-ledger"),
    ("parquet", "sublet-ledger"),
    ("async-nats", "sublet-protocol"),
    ("bincode", "sublet-protocol"),
    ("ort", "sublet-predictor"),
    ("ort-tract", "sublet-predictor"),
    ("nvml-wrapper", "sublet-agent"),
    ("nvml-wrapper-sys", "sublet-agent"),
];

/// All that the pure packages may link, apart from ours.
const CORE_MAY: [&str; 2] = ["serde", "thiserror"];
const PROTOCOL_MAY: [&str; 3] = ["bincode", "serde", "thiserror"];
/// What other features of `protocol` than `transport` may switch on: crates that do no I/O for it.
const PROTOCOL_MAY_ON_DEMAND: [&str; 2] = ["dep:jiff", "dep:utoipa"];

/// Those that use the words of `protocol` and must not gain its I/O by the way.
const WITHOUT_TRANSPORT: [&str; 3] = ["sublet-core", "sublet-ledger", "sublet-predictor"];

/// A package as its manifest declares it.
struct Declared {
    name: String,
    dependencies: Vec<Wanted>,
    /// Feature and what it switches on.
    features: Vec<(String, Vec<String>)>,
}

struct Wanted {
    name: String,
    is_shipped: bool,
    is_optional: bool,
    features: Vec<String>,
}

impl From<&Package> for Declared {
    fn from(package: &Package) -> Self {
        Self {
            name: package.name.to_string(),
            dependencies: package.dependencies.iter().map(Wanted::from).collect(),
            features: package.features.clone().into_iter().collect(),
        }
    }
}

impl From<&Dependency> for Wanted {
    fn from(dependency: &Dependency) -> Self {
        Self {
            name: dependency.name.clone(),
            is_shipped: dependency.kind != DependencyKind::Development,
            is_optional: dependency.optional,
            features: dependency.features.clone(),
        }
    }
}

fn check(packages: &[Declared]) -> Vec<Violation> {
    let ours: BTreeSet<&str> = packages.iter().map(|p| p.name.as_str()).collect();
    packages
        .iter()
        .flat_map(|package| {
            let mut broken = crossed(package, &ours);
            broken.extend(heavy(package));
            broken.extend(transported(package));
            match package.name.as_str() {
                "sublet-core" => broken.extend(more_than(package, &CORE_MAY, &ours)),
                "sublet-protocol" => {
                    broken.extend(more_than(package, &PROTOCOL_MAY, &ours));
                    broken.extend(leaking_features(package));
                }
                _ => {}
            }
            let path = &package.name;
            broken.into_iter().map(|message| Violation { path: path.clone(), line: 0, message })
        })
        .collect()
}

fn crossed(package: &Declared, ours: &BTreeSet<&str>) -> Vec<String> {
    let row = BORDERS.iter().find(|(name, _)| *name == package.name);
    // Members that only serve tests (a fake library) use none of ours.
    let may: &[&str] = row.map_or(&[], |(_, may)| may);
    let wanted = package.dependencies.iter().filter(|wanted| ours.contains(wanted.name.as_str()));
    let crossed = wanted
        .filter(|wanted| {
            let is_double = wanted.name == TEST_DOUBLE && wanted.is_shipped;
            is_double || !may.contains(&wanted.name.as_str())
        })
        .filter(|wanted| !is_simulated_broker(package, wanted));
    crossed.map(|wanted| format!("may not depend on {}", wanted.name)).collect()
}

/// The one exception: simulations may use the broker's real openraft, behind a feature.
fn is_simulated_broker(package: &Declared, wanted: &Wanted) -> bool {
    package.name == "sublet-simulations"
        && wanted.name == "sublet-broker"
        && wanted.is_optional
        && wanted.features.iter().any(|feature| feature == "sim")
}

fn heavy(package: &Declared) -> Vec<String> {
    let shipped = package.dependencies.iter().filter(|wanted| wanted.is_shipped);
    shipped
        .filter_map(|wanted| HEAVY.iter().find(|(name, _)| *name == wanted.name))
        .filter(|(_, owner)| *owner != package.name && package.name != TEST_DOUBLE)
        .map(|(name, owner)| format!("depends on {name}, which only {owner} may"))
        .collect()
}

fn transported(package: &Declared) -> Option<String> {
    let must_not = WITHOUT_TRANSPORT.contains(&package.name.as_str());
    let asks = package.dependencies.iter().any(|wanted| {
        wanted.name == "sublet-protocol" && wanted.features.iter().any(|f| f == "transport")
    });
    (must_not && asks).then(|| "switches on sublet-protocol/transport".to_owned())
}

fn more_than(package: &Declared, may: &[&str], ours: &BTreeSet<&str>) -> Vec<String> {
    let always = package.dependencies.iter().filter(|w| w.is_shipped && !w.is_optional);
    let foreign = always.filter(|w| !ours.contains(w.name.as_str()));
    let more = foreign.filter(|w| !may.contains(&w.name.as_str()));
    more.map(|w| format!("always links {}; it may link only {may:?}", w.name)).collect()
}

/// I/O enters `protocol` through `transport` alone, and that is off unless asked for.
fn leaking_features(package: &Declared) -> Vec<String> {
    let others = package.features.iter().filter(|(name, _)| name != "transport");
    others
        .flat_map(|(name, switches)| {
            let leaks = switches.iter().filter(|switch| is_leak(switch));
            leaks.map(move |leak| format!("feature `{name}` switches on {leak}"))
        })
        .collect()
}

fn is_leak(switch: &str) -> bool {
    let is_pure = PROTOCOL_MAY_ON_DEMAND.contains(&switch);
    switch == "transport" || (switch.starts_with("dep:") && !is_pure)
}

#[test]
fn packages_import_only_whom_they_may() {
    let metadata = MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .expect("cargo reads the manifests");
    let packages: Vec<Declared> = metadata.packages.iter().map(Declared::from).collect();
    for (name, _) in BORDERS {
        assert!(packages.iter().any(|p| p.name == name), "{name} is not in the workspace");
    }
    assert_clean(&check(&packages));
}

#[cfg(test)]
mod planted {
    use super::{BORDERS, Declared, HEAVY, Wanted, check};

    fn package(name: &str, dependencies: Vec<Wanted>) -> Declared {
        Declared { name: name.to_owned(), dependencies, features: Vec::new() }
    }

    fn shipped(name: &str) -> Wanted {
        Wanted { name: name.to_owned(), is_shipped: true, is_optional: false, features: Vec::new() }
    }

    /// What is said when `name` declares `wanted`, all our packages being there.
    fn said(name: &str, wanted: Wanted) -> usize {
        let mut packages: Vec<_> = BORDERS
            .iter()
            .filter(|(n, _)| *n != name)
            .map(|(n, _)| package(n, Vec::new()))
            .collect();
        packages.push(package(name, vec![wanted]));
        check(&packages).len()
    }

    #[test]
    fn every_edge_that_is_not_in_the_picture_is_caught() {
        let never = [
            ("sublet-broker", "sublet-agent"),
            ("sublet-broker", "sublet-predictor"),
            ("sublet-agent", "sublet-broker"),
            ("sublet-ledger", "sublet-core"),
            ("sublet-core", "sublet-ledger"),
            ("sublet-protocol", "sublet-core"),
            ("sublet-agent", "sublet"),
            ("sublet-broker", "sublet-simulations"),
            ("sublet-fake-nvml", "sublet-agent"),
        ];
        for (from, to) in never {
            assert_eq!(said(from, shipped(to)), 1, "{from} -> {to}");
            let in_tests = Wanted { is_shipped: false, ..shipped(to) };
            assert_eq!(said(from, in_tests), 1, "{from} -> {to} in tests");
        }
        assert_eq!(said("sublet-broker", shipped("sublet-ledger")), 0);
        assert_eq!(said("sublet", shipped("sublet-simulations")), 0);
    }

    #[test]
    fn the_test_double_is_for_tests_only() {
        let with_agent = |wanted| {
            let double = package("sublet-fake-nvml", vec![shipped("nvml-wrapper-sys")]);
            check(&[double, package("sublet-agent", vec![wanted])]).len()
        };
        assert_eq!(with_agent(shipped("sublet-fake-nvml")), 1);
        assert_eq!(with_agent(Wanted { is_shipped: false, ..shipped("sublet-fake-nvml") }), 0);
    }

    #[test]
    fn simulations_reach_the_broker_through_its_sim_feature_only() {
        let sim = || vec!["sim".to_owned()];
        let broker = || shipped("sublet-broker");
        assert_eq!(said("sublet-simulations", broker()), 1);
        assert_eq!(said("sublet-simulations", Wanted { features: sim(), ..broker() }), 1);
        let asked = Wanted { features: sim(), is_optional: true, ..broker() };
        assert_eq!(said("sublet-simulations", asked), 0);
    }

    #[test]
    fn a_heavy_dependency_outside_its_package_is_caught_except_in_tests() {
        for (name, owner) in HEAVY {
            assert_eq!(said("sublet-simulations", shipped(name)), 1, "{name}");
            let in_tests = Wanted { is_shipped: false, ..shipped(name) };
            assert_eq!(said("sublet-simulations", in_tests), 0, "{name}");
            let optional = Wanted { is_optional: true, ..shipped(name) };
            assert_eq!(said(owner, optional), 0, "{name}");
        }
    }

    #[test]
    fn the_pure_packages_link_nothing_more() {
        assert_eq!(said("sublet-core", shipped("serde")), 0);
        assert_eq!(said("sublet-core", shipped("rand")), 1);
        assert_eq!(said("sublet-protocol", shipped("tokio")), 1);
        assert_eq!(said("sublet-protocol", Wanted { is_optional: true, ..shipped("tokio") }), 0);
    }

    #[test]
    fn rules_ledger_and_predictor_do_not_gain_io_by_the_way() {
        let transport =
            || Wanted { features: vec!["transport".to_owned()], ..shipped("sublet-protocol") };
        assert_eq!(said("sublet-core", transport()), 1);
        assert_eq!(said("sublet-ledger", transport()), 1);
        assert_eq!(said("sublet-agent", transport()), 0);
    }

    #[test]
    fn transport_alone_brings_io_into_protocol() {
        let mut protocol = package("sublet-protocol", Vec::new());
        protocol.features = vec![
            ("transport".to_owned(), vec!["dep:tokio".to_owned()]),
            ("default".to_owned(), vec!["transport".to_owned()]),
            ("extra".to_owned(), vec!["dep:tokio".to_owned()]),
            ("openapi".to_owned(), vec!["dep:utoipa".to_owned()]),
        ];
        assert_eq!(check(&[protocol]).len(), 2);
    }
}
