//! Results for people and programs: the report, tables, pages with charts, the live view, metrics.

pub mod environment;
pub mod html;
pub(crate) mod human;
pub mod latency;
pub(crate) mod limit_report;
pub mod live;
pub mod prometheus;
pub mod report;
pub mod series;
pub mod steps;
pub(crate) mod table;
