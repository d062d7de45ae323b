//! Records and sites as JSON, in both directions.
