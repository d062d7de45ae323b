//! Progress bars for long work, only on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar of `len` things, or a counter if the number is unknown.
pub(crate) fn bar(what: &'static str, len: Option<u64>) -> ProgressBar {
    let bar = match len {
        Some(len) => ProgressBar::new(len)
            .with_style(style("{msg:>10} [{bar:30}] {human_pos}/{human_len} {per_sec} {eta}")),
        None => ProgressBar::new_spinner().with_style(style("{msg:>10} {spinner} {human_pos} {per_sec}")),
    };
    // Nothing is drawn if standard error is not a terminal.
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
    bar.with_message(what)
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
