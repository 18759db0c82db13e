//! Readers for the public traces, one module per format, plain or xz.
//!
//! They stream, check every cell and stop at the first bad row with the file, the line, the column, what
//! was found and what was expected. They interpret nothing: windows, loads and time scales are the
//! business of [`crate::replay`] and [`crate::generator`].

mod error;
pub mod helios;
mod name;
pub mod openb;
pub mod philly;
mod source;
mod table;

pub use error::{Error, Excerpt, Problem};
pub use name::VcName;
