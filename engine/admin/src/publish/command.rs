//! The commands of an operator for publishing, and their words.

use std::fmt;
use std::str::FromStr;

/// A command of an operator for publishing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Stop publishing, for this reason.
    Hold(String),
    /// Resume publishing.
    Resume,
    /// Publish this kept generation again, or the newest other one, and hold there.
    RollBack(Option<u64>),
    /// Build the set from all records.
    Rebuild,
    /// Merge all layers into one.
    Merge,
    /// Keep the published set for a roll back.
    Keep,
}

impl Command {
    /// The words on the control socket, and their effects.
    pub const WORDS: [(&'static str, &'static str); 6] = [
        ("hold", "publish nothing more, also after a restart; what follows says why"),
        ("resume", "publish again, beginning with what has changed meanwhile"),
        (
            "roll-back",
            "publish a kept generation again, by its number or the newest other one, and hold there",
        ),
        ("rebuild", "build the published set from all records, while the old one serves"),
        ("merge", "merge all layers of the published set into one"),
        ("keep", "keep the published set, to go back to"),
    ];
}

/// Why a command cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoCommand {
    /// The word is not known.
    Word(String),
    /// The arguments after the word are wrong.
    Rest {
        /// The word.
        word: &'static str,
        /// The arguments it takes.
        wants: &'static str,
    },
}

impl fmt::Display for NoCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => write!(f, "{word:?} is not a command of the publisher"),
            Self::Rest { word, wants } => write!(f, "after `{word}` comes {wants}"),
        }
    }
}

impl core::error::Error for NoCommand {}

impl FromStr for Command {
    type Err = NoCommand;

    fn from_str(line: &str) -> Result<Self, NoCommand> {
        let (word, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        let rest = rest.trim();
        let alone = |word, command| match rest {
            "" => Ok(command),
            _ => Err(NoCommand::Rest { word, wants: "nothing" }),
        };
        match word {
            "hold" if rest.is_empty() => Ok(Self::Hold("held by an operator".to_owned())),
            "hold" => Ok(Self::Hold(rest.to_owned())),
            "resume" => alone("resume", Self::Resume),
            "roll-back" if rest.is_empty() => Ok(Self::RollBack(None)),
            "roll-back" => match rest.parse() {
                Ok(generation) => Ok(Self::RollBack(Some(generation))),
                Err(_) => Err(NoCommand::Rest {
                    word: "roll-back",
                    wants: "the number of a generation, or nothing",
                }),
            },
            "rebuild" => alone("rebuild", Self::Rebuild),
            "merge" => alone("merge", Self::Merge),
            "keep" => alone("keep", Self::Keep),
            other => Err(NoCommand::Word(other.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_commands() {
        for (word, _) in Command::WORDS {
            assert!(word.parse::<Command>().is_ok(), "{word}");
        }
        let parse = |line: &str| line.parse::<Command>();
        assert_eq!(parse("hold until noon "), Ok(Command::Hold("until noon".to_owned())));
        assert_eq!(parse(" roll-back 17"), Ok(Command::RollBack(Some(17))));
        assert_eq!(parse("roll-back"), Ok(Command::RollBack(None)));
        for wrong in ["roll-back x", "roll-back -1", "resume now", "rebuild all", "merge 2", "keep it"] {
            assert!(matches!(parse(wrong), Err(NoCommand::Rest { .. })), "{wrong}");
        }
        for wrong in ["", "rollback", "HOLD"] {
            assert!(matches!(parse(wrong), Err(NoCommand::Word(_))), "{wrong}");
        }
    }
}
