//! The formulas of the design as they are written, computed anew from the leaves each time.

/// A tenant of the reference: its place, its quota and what its own leases hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leaf {
    pub(super) parent: Option<usize>,
    pub(super) nominal: i128,
    pub(super) borrow: Option<i128>,
    pub(super) lend: Option<i128>,
    pub(super) held: i128,
}

pub(super) struct Reference(pub(super) Vec<Leaf>);

/// What the formulas give for one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Row {
    pub(super) subtree: i128,
    pub(super) local: i128,
    pub(super) usage: i128,
    pub(super) available: i128,
}

impl Reference {
    /// Every formula for every tenant; with no usage, what could be held if nobody held anything.
    pub(super) fn rows(&self, usage: Usage) -> Vec<Row> {
        let mut rows = vec![Row::default(); self.0.len()];
        for (root, leaf) in self.0.iter().enumerate() {
            if leaf.parent.is_none() {
                self.add_up(root, usage, &mut rows);
                self.share_out(root, &mut rows);
            }
        }
        rows
    }

    fn children(&self, of: usize) -> Vec<usize> {
        (0..self.0.len()).filter(|n| self.0[*n].parent == Some(of)).collect()
    }

    fn add_up(&self, n: usize, usage: Usage, rows: &mut [Row]) {
        let leaf = self.0[n];
        rows[n].subtree = leaf.nominal;
        rows[n].usage = if usage == Usage::Held { leaf.held } else { 0 };
        for child in self.children(n) {
            self.add_up(child, usage, rows);
            let child = rows[child];
            rows[n].subtree += child.subtree - child.local;
            rows[n].usage += (child.usage - child.local).max(0);
        }
        rows[n].local = leaf.lend.map_or(0, |limit| (rows[n].subtree - limit).max(0));
    }

    fn share_out(&self, n: usize, rows: &mut [Row]) {
        let Row { subtree, local, usage, .. } = rows[n];
        rows[n].available = match self.0[n].parent {
            None => subtree - usage,
            Some(parent) => {
                let limit = self.0[n].borrow;
                let limit = limit.map(|limit| (subtree - local) - (usage - local).max(0) + limit);
                let above = rows[parent].available;
                (local - usage).max(0) + limit.map_or(above, |limit| above.min(limit))
            }
        };
        for child in self.children(n) {
            self.share_out(child, rows);
        }
    }

    pub(super) fn is_within(&self, n: usize, top: usize) -> bool {
        n == top || self.0[n].parent.is_some_and(|parent| self.is_within(parent, top))
    }

    pub(super) fn level(&self, n: usize) -> usize {
        1 + self.0[n].parent.map_or(0, |parent| self.level(parent))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Usage {
    Held,
    Nothing,
}
