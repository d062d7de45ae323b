//! What an operator wants of publishing, and the words for it.

use std::fmt;
use std::str::FromStr;

/// What an operator wants of publishing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Publish nothing more, for this reason.
    Hold(String),
    /// Go on.
    Resume,
    /// Publish this generation again, the newest other one that is kept if none is said, and hold there.
    RollBack(Option<u64>),
    /// Build the set from all records.
    Rebuild,
    /// Merge all layers into one.
    Merge,
    /// Keep what is published now, to go back to.
    Keep,
}

impl Command {
    /// The words on the control socket, and what they do.
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

/// What was said is no command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoCommand {
    /// The word is not known.
    Word(String),
    /// What follows the word does not belong there.
    Rest {
        /// The word.
        word: &'static str,
        /// What should follow it.
        wants: &'static str,
    },
}

impl fmt::Display for NoCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => write!(f, "{word:?} is no command of publishing"),
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
