//! Colours for readability: on a terminal, unless disabled.

use handle_proto::printable::Printable;
use std::fmt;
use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, Ordering};

/// When to use colours.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set or TERM is dumb.
    #[default]
    Auto,
    /// Also in files and pipes.
    Always,
    /// Never.
    Never,
}

/// The option for colours, of all commands of a program.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct ColorArgs {
    /// When to use colours: auto (on a terminal, unless NO_COLOR is set), always, or never.
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value_t,
        global = true,
        hide_possible_values = true
    )]
    color: ColorChoice,
}

impl ColorArgs {
    /// Decides for the rest of the program.
    pub fn choose(self) {
        choose(self.color);
    }
}

/// The role of a text, which decides its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Paint {
    /// Nothing special.
    #[default]
    Plain,
    /// The subject of the output.
    Strong,
    /// Rarely needed.
    Dim,
    /// As expected.
    Good,
    /// An error.
    Bad,
    /// Unusual.
    Odd,
}

const END: &str = "\x1b[0m";
const STRONG: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const GOOD: &str = "\x1b[32m";
const BAD: &str = "\x1b[31m";
const ODD: &str = "\x1b[33m";

static IS_ON: AtomicBool = AtomicBool::new(false);

fn choose(when: ColorChoice) {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let is_on = match when {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => std::io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb(),
    };
    IS_ON.store(is_on, Ordering::Relaxed);
}

/// Paints `text` if colours are used.
pub const fn paint<T: fmt::Display>(paint: Paint, text: T) -> PaintedText<T> {
    PaintedText { paint, text }
}

/// See [`paint`].
#[derive(Debug)]
pub struct PaintedText<T> {
    paint: Paint,
    text: T,
}

impl<T: fmt::Display> fmt::Display for PaintedText<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = match self.paint {
            _ if !IS_ON.load(Ordering::Relaxed) => return self.text.fmt(f),
            Paint::Plain => return self.text.fmt(f),
            Paint::Strong => STRONG,
            Paint::Dim => DIM,
            Paint::Good => GOOD,
            Paint::Bad => BAD,
            Paint::Odd => ODD,
        };
        // Only colours of this program pass when the line is printed.
        write!(f, "{code}{}{END}", Printable(&self.text))
    }
}

/// Finds the first colour sequence of this program: its position and length. There is none if
/// colours are off.
pub(crate) fn find_sequence(text: &str) -> Option<(usize, usize)> {
    if !IS_ON.load(Ordering::Relaxed) {
        return None;
    }
    text.match_indices('\x1b').find_map(|(at, _)| {
        let known = [END, STRONG, DIM, GOOD, BAD, ODD].into_iter();
        known.filter(|code| text[at..].starts_with(code)).map(|code| (at, code.len())).next()
    })
}
