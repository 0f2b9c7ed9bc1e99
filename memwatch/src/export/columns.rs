//! Tables for data frames as Apache Parquet: one row group, uncompressed. Unknown values are null.

use std::io;
use std::sync::Arc;

use memwatch_core::features::timeline::view::TimelineView;
use parquet::basic::{LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};

use crate::render::format::printable;
use crate::render::wall_clock::WallClock;

/// Values of one column, one per row.
pub(crate) enum ColumnValues {
    /// UTF-8 text.
    Text(Vec<Option<String>>),
    /// Integers.
    Number(Vec<Option<i64>>),
    /// Floating-point numbers.
    Real(Vec<Option<f64>>),
    /// Nanoseconds since 1970 in UTC.
    Time(Vec<Option<i64>>),
}

impl ColumnValues {
    fn type_of(&self, name: &str) -> Result<TypePtr, ParquetError> {
        let (physical, logical) = match self {
            Self::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Self::Number(_) => (Physical::INT64, None),
            Self::Real(_) => (Physical::DOUBLE, None),
            Self::Time(_) => (Physical::INT64, Some(LogicalType::timestamp(true, TimeUnit::NANOS))),
        };
        let builder = Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
        Ok(Arc::new(builder.with_logical_type(logical).build()?))
    }
}

/// Writes a table. All columns have the same number of rows.
///
/// # Errors
/// If the Parquet writer fails, which is not expected.
pub(crate) fn write(columns: &[(&str, ColumnValues)]) -> io::Result<Vec<u8>> {
    table(columns).map_err(io::Error::other)
}

fn table(columns: &[(&str, ColumnValues)]) -> Result<Vec<u8>, ParquetError> {
    let fields = columns.iter().map(|(name, values)| values.type_of(name)).collect::<Result<Vec<_>, _>>()?;
    let schema = Arc::new(Type::group_type_builder("memwatch").with_fields(fields).build()?);
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(WriterProperties::builder().build()))?;
    let mut group = writer.next_row_group()?;
    for (_, values) in columns {
        let Some(mut column) = group.next_column()? else { break };
        match values {
            ColumnValues::Text(texts) => {
                let (values, levels) = known(texts, |text| ByteArray::from(printable(text).as_ref()));
                column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None)?;
            }
            ColumnValues::Number(numbers) | ColumnValues::Time(numbers) => {
                let (values, levels) = known(numbers, |number| *number);
                column.typed::<Int64Type>().write_batch(&values, Some(&levels), None)?;
            }
            ColumnValues::Real(numbers) => {
                let (values, levels) = known(numbers, |number| *number);
                column.typed::<DoubleType>().write_batch(&values, Some(&levels), None)?;
            }
        }
        column.close()?;
    }
    group.close()?;
    writer.close()?;
    Ok(bytes)
}

/// Returns the known values, and per row whether its value is known (the definition levels).
fn known<T, V>(values: &[Option<T>], value: impl Fn(&T) -> V) -> (Vec<V>, Vec<i16>) {
    let levels = values.iter().map(|value| i16::from(value.is_some())).collect();
    (values.iter().flatten().map(value).collect(), levels)
}

/// Converts to Parquet's signed integers; `None` if the value is too large.
pub(crate) fn number(value: u64) -> Option<i64> {
    i64::try_from(value).ok()
}

/// Writes the points of a timeline, one per row.
///
/// # Errors
/// See [`write`].
pub(crate) fn timeline(timeline: &TimelineView, clock: &WallClock) -> io::Result<Vec<u8>> {
    let rows = || timeline.tracks.iter().flat_map(|track| track.points.iter().map(move |point| (track, point)));
    write(&[
        ("time", ColumnValues::Time(rows().map(|(_, point)| Some(clock.unix_ns(point.time_ns))).collect())),
        ("pid", ColumnValues::Number(rows().map(|(track, _)| track.tgid.map(|tgid| i64::from(tgid.0))).collect())),
        ("command", ColumnValues::Text(rows().map(|(track, _)| track.tgid.map(|_| track.command.clone())).collect())),
        (
            "gpu_uuid",
            ColumnValues::Text(rows().map(|(track, _)| track.uuid.as_ref().map(ToString::to_string)).collect()),
        ),
        ("measure", ColumnValues::Text(rows().map(|(track, _)| Some(track.measure.clone().into_owned())).collect())),
        ("bytes", ColumnValues::Number(rows().map(|(_, point)| number(point.bytes)).collect())),
        ("most_bytes", ColumnValues::Number(rows().map(|(_, point)| number(point.most_bytes)).collect())),
    ])
}

#[cfg(test)]
mod tests {
    use super::{ColumnValues, write};

    #[test]
    fn a_table_begins_and_ends_as_parquet_and_takes_what_is_not_known() {
        let columns = [
            ("name", ColumnValues::Text(vec![Some("a\u{1b}".to_owned()), None])),
            ("bytes", ColumnValues::Number(vec![None, Some(7)])),
            ("seconds", ColumnValues::Real(vec![Some(0.5), None])),
        ];
        let bytes = write(&columns).expect("it can be written");
        assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
        assert!(!bytes.contains(&0x1b), "what steers a terminal is written out");
        assert!(write(&[]).is_ok());
    }
}
