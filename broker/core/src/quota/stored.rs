//! How a tree is stored and compared: by names, whatever the ordinals are.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::quotas::{Quota, TenantTerms};

use super::amounts::Sums;
use super::node::Node;
use super::rows::{NONE, Row, Spot};
use super::spending::Spending;
use super::tree::Tree;

/// A tenant or group as it is stored.
#[derive(Serialize, Deserialize)]
struct StoredNode {
    parent: Option<TenantId>,
    terms: TenantTerms,
    quotas: BTreeMap<GpuModel, Quota>,
    sums: BTreeMap<GpuModel, Sums>,
    spending: Spending,
}

/// A tree as it is stored.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Tree")]
struct Stored {
    nodes: BTreeMap<TenantId, StoredNode>,
}

impl StoredNode {
    fn of(node: Node<'_>) -> StoredNode {
        StoredNode {
            parent: node.parent(),
            terms: *node.terms(),
            quotas: node.quotas().collect(),
            sums: node.amounts().collect(),
            spending: node.rows.member(node.no).spending,
        }
    }
}

impl From<Stored> for Tree {
    fn from(stored: Stored) -> Tree {
        let mut tree = Tree::default();
        for id in stored.nodes.keys() {
            tree.insert(*id, None);
        }
        for (id, node) in stored.nodes {
            let member = tree.number(id);
            // Whoever names a group that is not there is in none.
            let parent = node.parent.and_then(|parent| tree.rows.number(parent));
            let entry = tree.rows.member_mut(member);
            entry.parent = parent.unwrap_or(NONE);
            (entry.terms, entry.spending) = (node.terms, node.spending);
            for (model, quota) in node.quotas {
                let row = tree.row_of(member, model);
                (row.quota, row.is_set) = (quota, true);
            }
            for (model, sums) in node.sums {
                let row = tree.row_of(member, model);
                (row.sums, row.is_counted) = (sums, true);
            }
            tree.rows.renew_all(member);
        }
        tree
    }
}

impl Tree {
    fn row_of(&mut self, member: u32, model: GpuModel) -> &mut Row {
        let model = self.rows.model(model);
        self.rows.row_mut(Spot { member, model })
    }
}

impl Serialize for Tree {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let nodes = self.nodes().map(|(id, node)| (id, StoredNode::of(node))).collect();
        Stored { nodes }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tree, D::Error> {
        Stored::deserialize(deserializer).map(Tree::from)
    }
}

impl PartialEq for Tree {
    fn eq(&self, other: &Tree) -> bool {
        let (mut ours, mut theirs) = (self.nodes(), other.nodes());
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) => return true,
                (Some((id, node)), Some((other, same))) if id == other && is_same(node, same) => {}
                (Some(_) | None, Some(_) | None) => return false,
            }
        }
    }
}

impl Eq for Tree {}

fn is_same(node: Node<'_>, other: Node<'_>) -> bool {
    let spending = |node: Node<'_>| node.rows.member(node.no).spending;
    node.parent() == other.parent()
        && node.terms() == other.terms()
        && spending(node) == spending(other)
        && node.quotas().eq(other.quotas())
        && node.amounts().eq(other.amounts())
}
