//! Results for people and programs: the report, tables, pages with charts, the live view, metrics.

pub mod environment;
pub mod html;
pub mod latency;
pub mod live;
pub mod prometheus;
pub mod report;
pub mod series;
pub mod steps;
pub(crate) mod table;
