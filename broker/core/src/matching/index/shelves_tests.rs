//! Shelves against a list of slices that is looked through.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use sublet_protocol::capacity::{Capacity, Hardware, Isolation};
use sublet_protocol::ids::GpuModel;
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB};

use super::super::lots::WINDOWS;
use super::*;

const LOTS: u32 = 3;
const NODES: u32 = 4;

fn kind(lot: u32) -> Kind {
    let capacity = Capacity {
        model: GpuModel::new(&format!("m-{lot}")).unwrap(),
        gpu: GpuMilli::DEVICE,
        memory: MiB::new(80_000),
        cpu: CpuMilli::new(8_000),
        host_memory: MiB::new(64_000),
        isolation: Isolation::Exclusive,
        island: 0,
        hardware: Hardware::default(),
    };
    Kind { cluster: ClusterId::new("c").unwrap(), capacity, part: Part::Whole }
}

/// By GPU: the node, the lot and the window of each free slice.
type Model = BTreeMap<u128, (u32, u32, u8)>;

/// The free slices on a shelf, and its best window.
fn shelf(model: &Model, node: u32, lot: u32) -> Option<(u32, u8)> {
    let here = model.values().filter(|(of, kind, _)| (*of, *kind) == (node, lot));
    let windows: Vec<u8> = here.map(|(_, _, window)| *window).collect();
    let longest = windows.iter().copied().max()?;
    Some((windows.len() as u32, longest))
}

fn check(shelves: &Shelves, model: &Model) {
    assert_eq!(shelves.len(), model.len());
    for (window, count) in (0..WINDOWS).flat_map(|window| (1..4).map(move |c| (window, c))) {
        let lots: Vec<LotNo> = (0..LOTS).map(LotNo).collect();
        let roomy = |lot: u32, least: u32| {
            let shelves = (0..NODES).filter_map(move |node| Some((node, shelf(model, node, lot)?)));
            shelves.filter(move |(_, (free, longest))| *free >= least && *longest >= window)
        };
        let fewest = |lot: u32| roomy(lot, count).map(|(_, (free, _))| free).min();
        let expected = (0..LOTS).filter_map(|lot| Some((fewest(lot)?, lot))).min();
        let found = shelves.tightest(&lots, count, window);
        assert_eq!(found.map(|(lot, _, free, _)| (free, lot.0)), expected);
        if let Some((lot, node, _, slot)) = found {
            assert_eq!((shelves.lot_of(slot), shelves.node_of(slot)), (lot, node));
            assert!(model.contains_key(&shelves.device(slot).get()));
        }
        for lot in 0..LOTS {
            let nodes: BTreeSet<u32> = shelves.nodes(LotNo(lot), window).map(|no| no.0).collect();
            assert_eq!(nodes, roomy(lot, 1).map(|(node, _)| node).collect());
        }
    }
    let filled: BTreeSet<u32> = model.values().map(|(_, lot, _)| *lot).collect();
    assert_eq!(shelves.lots().map(|lot| lot.0).collect::<BTreeSet<u32>>(), filled);
    for node in 0..NODES {
        let lots: BTreeSet<u32> = shelves.lots_on(NodeNo(node)).map(|lot| lot.0).collect();
        assert_eq!(lots, (0..LOTS).filter(|lot| shelf(model, node, *lot).is_some()).collect());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_is_found_is_what_a_look_at_all_slices_finds(
        steps in prop::collection::vec((0_u128..24, 0..NODES, 0..LOTS, 0..WINDOWS), 1..120),
    ) {
        let mut shelves = Shelves::new(5);
        for lot in 0..LOTS {
            prop_assert_eq!(shelves.lot(&kind(lot)), (LotNo(lot), true));
        }
        for node in 0..NODES {
            let name = NodeId::new(&format!("n-{node}")).unwrap();
            prop_assert_eq!(shelves.node(ClusterId::new("c").unwrap(), name), NodeNo(node));
        }
        let mut model = Model::new();
        for (device, node, lot, window) in steps {
            let on = model.remove(&device).map_or(node, |(node, _, _)| node);
            let known = shelves.find_slot(NodeNo(on), DeviceId::new(device), Part::Whole);
            match known {
                Some(slot) => shelves.take(slot),
                None => {
                    let slice = (DeviceId::new(device), Part::Whole);
                    shelves.put((NodeNo(node), LotNo(lot)), slice, window);
                    model.insert(device, (node, lot, window));
                }
            }
            check(&shelves, &model);
        }
    }
}

#[test]
fn a_shelf_that_was_emptied_serves_the_next_lot_of_its_node() {
    let mut shelves = Shelves::new(5);
    let node = shelves.node(ClusterId::new("c").unwrap(), NodeId::new("n").unwrap());
    for round in 0..10_u32 {
        let (lot, _) = shelves.lot(&kind(round % LOTS));
        let slot = shelves.put((node, lot), (DeviceId::new(1), Part::Whole), 3);
        shelves.take(slot);
    }
    assert_eq!(shelves.shelves.len(), 1);
    assert_eq!(shelves.lots().count(), 0);
}

#[test]
fn lots_that_were_forgotten_make_place_for_others() {
    let mut shelves = Shelves::new(5);
    let node = shelves.node(ClusterId::new("c").unwrap(), NodeId::new("n").unwrap());
    let (kept, _) = shelves.lot(&kind(0));
    shelves.put((node, kept), (DeviceId::new(1), Part::Whole), 3);
    for number in 1..2_000 {
        let (lot, is_new) = shelves.lot(&kind(number));
        assert!(is_new);
        let slot = shelves.put((node, lot), (DeviceId::new(2), Part::Whole), 3);
        assert_eq!(shelves.kind(lot), Some(&kind(number)));
        shelves.take(slot);
    }
    assert!(shelves.known_lots().count() < 1_000);
    assert_eq!(shelves.lots().collect::<Vec<_>>(), [kept]);
    assert_eq!(shelves.find_lot(&kind(0)), Some(kept));
    assert_eq!(shelves.find_lot(&kind(1)), None);
}
