//! Reads lines into blocks.

use super::value::{field, handle, named, number, trimmed};
use super::{
    AuthenticationBlock, BatchBlock, BatchOperation, BatchProof, BatchValue, HomeBlock, InvalidBlock,
    LineProblem, NAMES_COUNT_MAX, SessionBlock, VALUES_COUNT_MAX,
};
use crate::lines::{LINE_LEN_MAX, Line, Lines};
use std::io::{self, BufRead};
use zeroize::Zeroizing;

/// The blocks of a batch file, in order. After an invalid block, reading continues with the next
/// one.
#[derive(Debug)]
pub struct BatchReader<R> {
    lines: Lines<R>,
    // Whether the current block has ended.
    is_over: bool,
    // Whether the last block had secrets, so that the next line may be one.
    had_secrets: bool,
    block_len_max: usize,
}

/// Most bytes of a block, unless the caller names a bound. The largest possible record is shorter.
const BLOCK_LEN_MAX: usize = 16 << 20;
/// Most lines of an invalid block that are skipped. Text without an empty line, which may have no
/// end, is then refused.
const SKIPPED_LINES_MAX: u64 = 1 << 20;

/// The words that begin blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockWord {
    Create,
    Add,
    Modify,
    Delete,
    Remove,
    Home,
    Unhome,
    Authenticate,
    SessionSetup,
}

const WORDS: [(&str, BlockWord); 9] = [
    ("CREATE", BlockWord::Create),
    ("ADD", BlockWord::Add),
    ("MODIFY", BlockWord::Modify),
    ("DELETE", BlockWord::Delete),
    ("REMOVE", BlockWord::Remove),
    ("HOME", BlockWord::Home),
    ("UNHOME", BlockWord::Unhome),
    ("AUTHENTICATE", BlockWord::Authenticate),
    ("SESSIONSETUP", BlockWord::SessionSetup),
];

impl<R: BufRead> BatchReader<R> {
    /// Reads the blocks of `input`.
    pub fn new(input: R) -> Self {
        Self::bounded(input, BLOCK_LEN_MAX)
    }

    /// The same for blocks of at most `block_len_max` bytes.
    pub fn bounded(input: R, block_len_max: usize) -> Self {
        let lines = Lines::new(input, LINE_LEN_MAX.min(block_len_max));
        Self { lines, is_over: true, had_secrets: false, block_len_max }
    }

    /// Number of the line read last.
    pub const fn line(&self) -> u64 {
        self.lines.number()
    }

    /// The first line of the next block: its word, and the rest of the line.
    fn first(&mut self) -> io::Result<Option<Result<(BlockWord, String), LineProblem>>> {
        loop {
            let line = match self.lines.next()? {
                Line::End => return Ok(None),
                Line::NotUtf8 => return Ok(Some(Err(LineProblem::NotUtf8))),
                Line::TooLong => return Ok(Some(Err(LineProblem::TooLong))),
                Line::Text(line) => trimmed(line),
            };
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, rest) = field(line).unwrap_or((line, ""));
            return Ok(Some(match word(name) {
                Some(word) => {
                    self.had_secrets = matches!(word, BlockWord::Authenticate | BlockWord::SessionSetup);
                    Ok((word, trimmed(rest).to_owned()))
                }
                None if self.had_secrets => Err(LineProblem::BehindSecrets),
                None => Err(LineProblem::NoOperation(name.to_owned())),
            }));
        }
    }

    /// The next line of a block; `None` at its end.
    fn inner(&mut self) -> io::Result<Option<Result<String, LineProblem>>> {
        let line = match self.lines.next()? {
            Line::NotUtf8 => return Ok(Some(Err(LineProblem::NotUtf8))),
            Line::TooLong => return Ok(Some(Err(LineProblem::TooLong))),
            Line::Text(line) => trimmed(line).to_owned(),
            Line::End => String::new(),
        };
        let is_next = field(&line).is_some_and(|(name, _)| word(name).is_some());
        if is_next {
            self.lines.back();
        }
        self.is_over = is_next || line.is_empty();
        Ok((!self.is_over).then_some(Ok(line)))
    }

    /// Skips the rest of a block.
    fn pass_over(&mut self) -> io::Result<()> {
        let first = self.line();
        while !self.is_over {
            self.inner()?;
            if self.line() - first > SKIPPED_LINES_MAX {
                let why = format!("line {first}: no end of a block within {SKIPPED_LINES_MAX} lines");
                return Err(io::Error::other(why));
            }
        }
        Ok(())
    }

    /// The required next line, whatever its content: a secret or a path.
    fn required(&mut self, what: &'static str) -> io::Result<Result<Zeroizing<String>, LineProblem>> {
        self.is_over = true;
        Ok(match self.lines.next()? {
            Line::Text(line) if !trimmed(line).is_empty() => Ok(Zeroizing::new(trimmed(line).to_owned())),
            Line::NotUtf8 => Err(LineProblem::NotUtf8),
            Line::TooLong => Err(LineProblem::TooLong),
            Line::Text(_) | Line::End => Err(LineProblem::Missing(what)),
        })
    }

    /// Passes every line up to the end of the block to `take`. There may be at most `most` of them.
    fn each<T>(
        &mut self,
        what: &'static str,
        most: usize,
        mut take: impl FnMut(&str) -> Result<T, LineProblem>,
    ) -> io::Result<Result<Vec<T>, LineProblem>> {
        let (mut all, mut len) = (Vec::new(), 0);
        while let Some(line) = self.inner()? {
            len += line.as_ref().map_or(0, String::len);
            if all.len() == most {
                return Ok(Err(LineProblem::TooMany(what, most)));
            }
            if len > self.block_len_max {
                return Ok(Err(LineProblem::BlockTooLong(self.block_len_max)));
            }
            match line.and_then(|line| take(&line)) {
                Ok(one) => all.push(one),
                Err(why) => return Ok(Err(why)),
            }
        }
        Ok(Ok(all))
    }

    fn operation(&mut self, word: BlockWord, rest: &str) -> io::Result<Result<BatchOperation, LineProblem>> {
        self.is_over = matches!(word, BlockWord::Delete | BlockWord::Remove);
        let with_values: fn(String, Vec<BatchValue>) -> BatchOperation = match word {
            BlockWord::Create => BatchOperation::Create,
            BlockWord::Add => BatchOperation::Add,
            BlockWord::Modify => BatchOperation::Modify,
            BlockWord::Delete => {
                return Ok(handle(rest).map(|handle| BatchOperation::Delete(handle.to_owned())));
            }
            BlockWord::Remove => return Ok(remove(rest)),
            BlockWord::Home | BlockWord::Unhome => return self.home(word == BlockWord::Unhome, rest),
            BlockWord::Authenticate => return self.authenticate(rest),
            BlockWord::SessionSetup => return self.session(rest),
        };
        let handle = match handle(rest) {
            Ok(handle) => handle.to_owned(),
            Err(why) => return Ok(Err(why)),
        };
        let values = self.each("values", VALUES_COUNT_MAX, BatchValue::parse)?;
        Ok(values.and_then(|values| {
            if values.is_empty() {
                Err(LineProblem::Missing("a value"))
            } else {
                Ok(with_values(handle, values))
            }
        }))
    }

    fn home(&mut self, is_release: bool, rest: &str) -> io::Result<Result<BatchOperation, LineProblem>> {
        let home = match server(rest) {
            Ok((address, port, protocol)) => {
                HomeBlock { is_release, address, port, protocol, prefixes: Vec::new() }
            }
            Err(why) => return Ok(Err(why)),
        };
        let prefixes = self.each("prefixes", NAMES_COUNT_MAX, |line| {
            let is_prefix =
                line.get(..5).is_some_and(|front| front.eq_ignore_ascii_case("0.NA/")) && line.len() > 5;
            if is_prefix {
                Ok(line.to_owned())
            } else {
                Err(LineProblem::Unknown("prefix (such as 0.NA/10.1045)", line.to_owned()))
            }
        })?;
        Ok(prefixes.and_then(|prefixes| {
            if prefixes.is_empty() {
                Err(LineProblem::Missing("a prefix"))
            } else {
                Ok(BatchOperation::Home(HomeBlock { prefixes, ..home }))
            }
        }))
    }

    fn authenticate(&mut self, rest: &str) -> io::Result<Result<BatchOperation, LineProblem>> {
        // The secret may be here by mistake, so errors show nothing of the line.
        let missing = || LineProblem::Missing("SECKEY:index:handle or PUBKEY:index:handle");
        let Some((kind, identity)) = rest.split_once(':') else { return Ok(Err(missing())) };
        let is_secret = match kind.to_ascii_uppercase().as_str() {
            "SECKEY" => true,
            "PUBKEY" => false,
            _ => return Ok(Err(missing())),
        };
        let line = self.required(if is_secret { "the secret" } else { "the key file" })?;
        let authentication = named(identity).map_err(|_| missing()).and_then(|identity| {
            let line = line?;
            let proof = match line.split_once('|') {
                _ if is_secret => BatchProof::Secret(line),
                Some((path, passphrase)) => {
                    BatchProof::KeyFile(trimmed(path).to_owned(), Some(Zeroizing::new(passphrase.to_owned())))
                }
                None => BatchProof::KeyFile(line.as_str().to_owned(), None),
            };
            Ok(AuthenticationBlock { identity, proof })
        });
        Ok(authentication.map(BatchOperation::Authenticate))
    }

    fn session(&mut self, rest: &str) -> io::Result<Result<BatchOperation, LineProblem>> {
        let (mut session, mut is_said, mut exchange) = (SessionBlock::default(), false, None);
        if !rest.is_empty() {
            return Ok(Err(LineProblem::Missing("the end of the line after SESSIONSETUP")));
        }
        let lines = self.each("lines of a session", NAMES_COUNT_MAX, |line| {
            let (name, value) =
                line.split_once(':').ok_or(LineProblem::Missing("a colon in a line of SESSIONSETUP"))?;
            match name.to_ascii_uppercase().as_str() {
                "USESESSION" => (session.is_used, is_said) = (bits::<1>(value)?[0], true),
                "OPTIONS" => {
                    [session.is_encrypted, session.is_authenticated, session.falls_back] = bits(value)?;
                }
                "TIMEOUT" => {
                    session.timeout_hours = Some(number("timeout", trimmed(value), 0)?.cast_unsigned())
                }
                "PUBEXNGKEYFILE" => one_of(&mut exchange, "PUBEXNGKEYFILE")?,
                "PUBEXNGKEYREF" => {
                    named(value)?;
                    one_of(&mut exchange, "PUBEXNGKEYREF")?;
                }
                "PRIVEXNGKEYFILE" | "PASSPHRASE" => {}
                _ => {
                    // Shows as little as possible of a passphrase with a colon in it.
                    let (name, _) = field(name).unwrap_or_default();
                    return Err(LineProblem::Unknown("line of SESSIONSETUP", name.to_owned()));
                }
            }
            Ok(())
        })?;
        session.names_exchange_key = exchange.is_some();
        Ok(lines.and_then(|_| {
            if is_said {
                Ok(BatchOperation::Session(session))
            } else {
                Err(LineProblem::Missing("USESESSION"))
            }
        }))
    }
}

impl<R: BufRead> Iterator for BatchReader<R> {
    type Item = io::Result<Result<BatchBlock, InvalidBlock>>;

    fn next(&mut self) -> Option<Self::Item> {
        let (word, rest) = match self.first().transpose()? {
            Ok(Ok(first)) => first,
            Ok(Err(why)) => {
                let line = self.line();
                self.is_over = false;
                return Some(self.pass_over().map(|()| Err(InvalidBlock { line, problem: why })));
            }
            Err(error) => return Some(Err(error)),
        };
        let line = self.line();
        Some(self.operation(word, &rest).and_then(|operation| {
            let why = match operation {
                Ok(operation) => return Ok(Ok(BatchBlock { line, operation })),
                Err(why) => why,
            };
            let line = self.line();
            self.pass_over()?;
            Ok(Err(InvalidBlock { line, problem: why }))
        }))
    }
}

/// Whether blocks begin with this word.
#[must_use]
pub fn is_operation(name: &str) -> bool {
    word(name).is_some()
}

fn word(name: &str) -> Option<BlockWord> {
    WORDS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|&(_, word)| word)
}

/// `index,index:handle`.
fn remove(rest: &str) -> Result<BatchOperation, LineProblem> {
    let (indexes, name) = rest.split_once(':').ok_or(LineProblem::Missing("index:handle"))?;
    let indexes =
        indexes.split(',').take(NAMES_COUNT_MAX + 1).map(|index| number("index", trimmed(index), 1));
    let indexes = indexes.collect::<Result<Vec<_>, _>>()?;
    if indexes.len() > NAMES_COUNT_MAX {
        return Err(LineProblem::TooMany("indexes", NAMES_COUNT_MAX));
    }
    Ok(BatchOperation::Remove(handle(trimmed(name))?.to_owned(), indexes))
}

/// Parses `address:port:protocol`. An IPv6 address has colons itself, and may be in brackets.
fn server(rest: &str) -> Result<(String, u16, String), LineProblem> {
    let mut parts = rest.rsplitn(3, ':').map(trimmed);
    let protocol = parts.next().unwrap_or_default().to_ascii_uppercase();
    let missing = LineProblem::Missing("address:port:protocol");
    let (Some(port), Some(address)) = (parts.next(), parts.next()) else { return Err(missing) };
    if !["TCP", "UDP", "HTTP"].contains(&protocol.as_str()) {
        return Err(LineProblem::Unknown("protocol (TCP, UDP or HTTP)", protocol));
    }
    let wrong = || LineProblem::NoNumber("port", port.to_owned());
    let port = u16::try_from(number("port", port, 1)?).map_err(|_| wrong())?;
    let address = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
    if address.is_empty() { Err(missing) } else { Ok((address.to_owned(), port, protocol)) }
}

fn bits<const COUNT: usize>(text: &str) -> Result<[bool; COUNT], LineProblem> {
    let wrong = || LineProblem::Unknown("setting (0 or 1)", text.to_owned());
    let text = trimmed(text);
    if !text.bytes().all(|bit| matches!(bit, b'0' | b'1')) {
        return Err(wrong());
    }
    let bits: Vec<bool> = text.bytes().map(|bit| bit == b'1').collect();
    bits.try_into().map_err(|_| wrong())
}

fn one_of(choice: &mut Option<&'static str>, name: &'static str) -> Result<(), LineProblem> {
    match choice.replace(name) {
        Some(other) if other != name => Err(LineProblem::Both(other, name)),
        _ => Ok(()),
    }
}
