//! Rows as an Apache Parquet file. The only place that names the `parquet` crate's writer.

use std::io;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};

use super::ExportError;
use super::table::{Column, Kind, Value};

/// Rows that are held until they are written together: about 20 MiB.
const ROWS_PER_GROUP: usize = 16_384;

/// Collects rows and writes them in groups.
pub(super) struct ParquetRows<W: io::Write + Send> {
    columns: &'static [Column],
    writer: SerializedFileWriter<W>,
    rows: Vec<Vec<Value>>,
}

impl<W: io::Write + Send> ParquetRows<W> {
    pub(super) fn new(to: W, columns: &'static [Column]) -> Result<Self, ExportError> {
        let schema = schema(columns).map_err(ExportError::Parquet)?;
        let properties = WriterProperties::builder();
        let properties = properties
            .set_compression(Compression::UNCOMPRESSED)
            .set_created_by("sublet".to_owned())
            .build();
        let writer = SerializedFileWriter::new(to, schema, Arc::new(properties));
        let writer = writer.map_err(ExportError::Parquet)?;
        Ok(Self { columns, writer, rows: Vec::new() })
    }

    pub(super) fn push(&mut self, row: Vec<Value>) -> Result<(), ExportError> {
        self.rows.push(row);
        if self.rows.len() >= ROWS_PER_GROUP { self.group() } else { Ok(()) }
    }

    pub(super) fn finish(mut self) -> Result<(), ExportError> {
        if !self.rows.is_empty() {
            self.group()?;
        }
        self.writer.close().map_err(ExportError::Parquet)?;
        Ok(())
    }

    fn group(&mut self) -> Result<(), ExportError> {
        let rows = std::mem::take(&mut self.rows);
        let mut group = self.writer.next_row_group().map_err(ExportError::Parquet)?;
        for (place, column) in self.columns.iter().enumerate() {
            let values = rows.iter().map(|row| &row[place]);
            write_column(&mut group, column, values).map_err(ExportError::Parquet)?;
        }
        group.close().map_err(ExportError::Parquet)?;
        Ok(())
    }
}

/// Decimals are whole millionths, instants whole milliseconds of UTC, texts UTF-8.
fn schema(columns: &[Column]) -> Result<TypePtr, parquet::errors::ParquetError> {
    let field = |column: &Column| {
        let repetition =
            if column.is_nullable { Repetition::OPTIONAL } else { Repetition::REQUIRED };
        let builder = match column.kind {
            Kind::Text => Type::primitive_type_builder(column.name, Physical::BYTE_ARRAY)
                .with_logical_type(Some(LogicalType::String)),
            Kind::Decimal => Type::primitive_type_builder(column.name, Physical::INT64)
                .with_precision(18)
                .with_scale(6)
                .with_logical_type(Some(LogicalType::decimal(6, 18))),
            Kind::Time => Type::primitive_type_builder(column.name, Physical::INT64)
                .with_logical_type(Some(LogicalType::timestamp(true, TimeUnit::MILLIS))),
            Kind::Whole => Type::primitive_type_builder(column.name, Physical::INT64),
        };
        builder.with_repetition(repetition).build().map(Arc::new)
    };
    let fields = columns.iter().map(field).collect::<Result<Vec<_>, _>>()?;
    Type::group_type_builder("rows").with_fields(fields).build().map(Arc::new)
}

fn write_column<'a, W: io::Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    column: &Column,
    values: impl Iterator<Item = &'a Value> + Clone,
) -> Result<(), parquet::errors::ParquetError> {
    match column.kind {
        Kind::Text => write_typed::<ByteArrayType, _>(group, column, values.map(text)),
        Kind::Decimal | Kind::Time | Kind::Whole => {
            write_typed::<Int64Type, _>(group, column, values.map(number))
        }
    }
}

fn write_typed<T: DataType, W: io::Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    column: &Column,
    values: impl Iterator<Item = Option<T::T>>,
) -> Result<(), parquet::errors::ParquetError> {
    let mut present = Vec::new();
    let mut levels = Vec::new();
    for value in values {
        levels.push(i16::from(value.is_some()));
        present.extend(value);
    }
    let levels = column.is_nullable.then_some(levels.as_slice());
    let mut writer = group.next_column()?.expect("the file has as many columns as the layout");
    writer.typed::<T>().write_batch(&present, levels, None)?;
    writer.close()
}

fn text(value: &Value) -> Option<ByteArray> {
    match value {
        Value::Text(text) => Some(text.as_bytes().to_vec().into()),
        Value::Null => None,
        Value::Decimal(..) | Value::Time(_) | Value::Whole(_) => unreachable!("a column of texts"),
    }
}

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Decimal(number, _) | Value::Whole(number) => Some(*number),
        Value::Time(instant) => Some(i64::try_from(instant.get()).unwrap_or(i64::MAX)),
        Value::Null => None,
        Value::Text(_) => unreachable!("a column of numbers"),
    }
}
