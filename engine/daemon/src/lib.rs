//! What every process of the Handle System has, apart from what it answers.
//!
//! - [`administrators`], [`identity`]: who may do what, as configured for every process.
//! - [`breaker`]: a service that does not answer is not asked for a while.
//! - [`clock`]: the time of day.
//! - [`connections`]: who is connected, how long each may wait, and whose place a new one takes.
//! - [`control`]: the control socket.
//! - [`http`]: the part of HTTP that a scraper needs.
//! - [`line_log`]: a log with a line for each request.
//! - [`listen`]: addresses that cannot be bound, and the limit of open files.
//! - [`log`]: what is logged, and how to change it.
//! - [`metrics`](mod@metrics): the declarations of metrics, and their encoding.
//! - [`notice`]: what a publisher tells other machines about each set, and how they wait for it.
//! - [`permits`]: so many of something at a time.
//! - [`priority`]: threads that let others go first.
//! - [`privileges`]: from root to another user.
//! - [`program`]: the frame of a program: arguments, checks, logs, signals and exit codes.
//! - [`publication`]: the directory in which sets are published.
//! - [`publisher_keys`]: the keys with which sets are signed, and those that are accepted.
//! - [`readiness`]: what the service manager is told.
//! - [`record_tag`]: the tag that names a state of a record.
//! - [`scrape`]: metrics and health over HTTP.
//! - [`secret_guesses`]: limits on wrong secret keys.
//! - [`server_key`]: the key that signs answers, from a file that nobody else can read.
//! - [`settings`](mod@settings): the table of settings, and everything that is made from it.
//! - [`shutdown`]: the end of a process, as an event to sleep on.
//! - [`signals`]: what SIGTERM, SIGINT and SIGHUP ask for.
//! - [`site`]: the site record, and the place of a server in it.
//! - [`socket`]: local sockets, for their owner only, and connections to them.
//! - [`source_counts`]: how many of something each source has.
//! - [`source_rates`]: how often each source does something.
//! - [`takeover`]: a new process takes over the sockets of the old one.
//! - [`text`]: files that an operator writes.
//! - [`threads`]: the long-lived threads, and those that have ended by a bug.
//! - [`user_namespace`]: which users the kernel tells this process apart.
//!
//! # Example
//!
//! The settings of a process are declared once; [`settings`](mod@settings) explains the form.
//!
//! ```
//! use handle_daemon::settings::SettingSection as _;
//!
//! handle_daemon::settings! {
//!     /// Limits on requests.
//!     pub struct LimitsConfig {
//!         /// Requests at a time.
//!         live requests: usize = 64, 1..=4096;
//!     }
//! }
//!
//! handle_daemon::settings! {
//!     /// Configuration of a process.
//!     pub struct Config of process on port 2641 {
//!         section limits: LimitsConfig;
//!     }
//! }
//!
//! let config: Config = toml::from_str("[limits]\nrequests = 100").unwrap();
//! assert!(config.check().is_ok());
//! assert_eq!((config.limits.requests, config.listen[0].port()), (100, 2641));
//!
//! let config: Config = toml::from_str("[limits]\nrequests = 5000").unwrap();
//! let error = config.check().unwrap_err().to_string();
//! assert_eq!(error, "`limits.requests` is 5000: it must be from 1 to 4096");
//! ```
#![forbid(unsafe_code)]

pub use handle_auth::clock;

pub mod administrators;
pub mod breaker;
mod clients;
pub mod connections;
pub mod control;
pub mod event;
pub mod http;
pub mod identity;
pub mod line_log;
pub mod listen;
pub mod log;
pub mod metrics;
pub mod notice;
pub mod permits;
pub mod priority;
pub mod privileges;
pub mod program;
pub mod publication;
pub mod publisher_keys;
pub mod readiness;
pub mod record_tag;
pub mod scrape;
pub mod secret_guesses;
pub mod server_key;
pub mod settings;
pub mod shutdown;
pub mod signals;
pub mod site;
pub mod socket;
pub mod source_counts;
pub mod source_rates;
pub mod takeover;
pub mod text;
pub mod threads;
pub mod user_namespace;
