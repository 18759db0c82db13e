//! A backup of a running cell, piece by piece. The journal only grows, so the records up to the one
//! that was the last at the beginning are the same however long it takes.

use std::collections::BTreeSet;

use super::{Header, Writer};
use crate::cell::{Cell, RECORDS_MAX};
use crate::error::Error;

/// The bytes of a backup, as they are made. Blocks while it reads.
pub struct Pieces {
    cell: Cell,
    header: Header,
    next: u64,
    stage: Stage,
}

enum Stage {
    Header,
    Records(Writer),
    Over,
}

impl Cell {
    /// A backup of everything that was acknowledged before this call, from any broker of the cell.
    ///
    /// # Errors
    /// [`Error::NotLeader`], [`Error::Ledger`], [`Error::Stopped`].
    pub async fn backup(&self) -> Result<Pieces, Error> {
        // What the state says was there before is in the journal now.
        let founded = self.read(sublet_core::State::cell).await?;
        let (cell, epoch) = founded.ok_or(Error::NotLeader { leader: None })?;
        let head = self.head()?;
        let members = self.status().members.into_iter().map(|member| member.node_id);
        let mut brokers: BTreeSet<u64> = members.collect();
        brokers.extend(self.read_stale(|state| state.brokers().clone()));
        let brokers = brokers.into_iter().collect();
        let (records, root) = (head.size, head.root.to_string());
        let header = Header { cell, epoch, records, root, brokers };
        Ok(Pieces { cell: self.clone(), header, next: 0, stage: Stage::Header })
    }
}

impl Pieces {
    /// What the backup says about itself.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    fn records(&mut self, mut writer: Writer) -> Result<Vec<u8>, Error> {
        let left = usize::try_from(self.header.records - self.next).unwrap_or(RECORDS_MAX);
        if left == 0 {
            return Ok(writer.end());
        }
        let records = self.cell.records(self.next, left.min(RECORDS_MAX))?;
        let last = records.last().ok_or(Error::Stopped)?;
        self.next = last.index.saturating_add(1);
        let bytes = writer.records(&records).map_err(Error::Codec)?;
        self.stage = Stage::Records(writer);
        Ok(bytes)
    }
}

impl Iterator for Pieces {
    type Item = Result<Vec<u8>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Header => {
                let (writer, bytes) = Writer::begin(&self.header);
                self.stage = Stage::Records(writer);
                Some(Ok(bytes))
            }
            Stage::Records(writer) => Some(self.records(writer)),
            Stage::Over => None,
        }
    }
}
