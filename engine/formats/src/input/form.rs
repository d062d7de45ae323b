//! The forms of inputs, and how each begins.

use super::csv_table::separator_of;
use super::stream::{InputStream, PeekedBytes};
use crate::batch::is_operation;
use crate::dump::Dump;
use std::io;

/// The form of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputForm {
    /// Objects of JSON: one on each line, indented ones, or an array of them.
    Json,
    /// The JSON export of a reference server.
    Export,
    /// The SQL tables of a reference server.
    Sql,
    /// A table with a header line, as spreadsheets save it.
    Csv,
    /// The operations of a batch file.
    Batch,
    /// One name on each line.
    Names,
}

impl InputForm {
    /// The form that the input begins like; `None` if it is unknown. Nothing is taken from it.
    ///
    /// # Errors
    /// Those of the input.
    pub fn recognise(input: &mut InputStream<'_>) -> io::Result<Option<Self>> {
        let mut more = false;
        loop {
            let begin = input.peek_some(more)?;
            let is_all = begin.is_all;
            match of_beginning(&begin) {
                FileStart::Form(form) => return Ok(Some(form)),
                FileStart::Unknown => return Ok(None),
                FileStart::TooShort if is_all => return Ok(Some(Self::Json)),
                FileStart::TooShort => more = true,
            }
        }
    }
}

/// What the first bytes of an input show.
enum FileStart {
    Form(InputForm),
    Unknown,
    /// More bytes are needed.
    TooShort,
}

fn of_beginning(begin: &PeekedBytes<'_>) -> FileStart {
    let mut text = begin.bytes.trim_ascii_start();
    // Comments are in lists, tables, lines of JSON and batch files, and in dumps of MySQL.
    while text.starts_with(b"#") {
        match text.iter().position(|&byte| byte == b'\n') {
            Some(end) => text = text[end..].trim_ascii_start(),
            None if begin.is_all => return FileStart::Form(InputForm::Names),
            None => return FileStart::TooShort,
        }
    }
    if text.is_empty() {
        return FileStart::TooShort;
    }
    if let Some(object) = text.strip_prefix(b"{") {
        return of_object(object.trim_ascii_start(), begin.is_all);
    }
    if text.starts_with(b"[") {
        return FileStart::Form(InputForm::Json);
    }
    let end = text.iter().position(|&byte| byte == b'\n');
    if end.is_none() && !begin.is_all {
        return FileStart::TooShort;
    }
    let line = text[..end.unwrap_or(text.len())].trim_ascii();
    if separator_of(line).is_some() {
        FileStart::Form(InputForm::Csv)
    } else if is_batch(line) {
        FileStart::Form(InputForm::Batch)
    } else if is_sql(line) || Dump::<&[u8]>::has_bare_rows(line) {
        FileStart::Form(InputForm::Sql)
    } else if is_name(line) {
        FileStart::Form(InputForm::Names)
    } else {
        FileStart::Unknown
    }
}

/// An object is an export if its first member is one of an export.
fn of_object(members: &[u8], is_all: bool) -> FileStart {
    for name in [&b"\"homedPrefixes\""[..], b"\"handleRecords\""] {
        if members.starts_with(name) {
            return FileStart::Form(InputForm::Export);
        }
        if name.starts_with(members) && !is_all {
            return FileStart::TooShort;
        }
    }
    FileStart::Form(InputForm::Json)
}

/// Whether a line begins a block: `CREATE 10.1045/x` does, unlike `CREATE TABLE`.
fn is_batch(line: &[u8]) -> bool {
    let Ok(line) = str::from_utf8(line) else { return false };
    let (word, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    let has_argument = match word.to_ascii_uppercase().as_str() {
        "SESSIONSETUP" => rest.trim().is_empty(),
        "HOME" | "UNHOME" | "AUTHENTICATE" | "REMOVE" => rest.contains(':'),
        _ => rest.split_whitespace().next().and_then(|handle| handle.find('/')).is_some_and(|at| at > 0),
    };
    is_operation(word) && has_argument
}

/// Whether a dump can begin like this: with a comment, a command of psql, or a statement.
fn is_sql(begin: &[u8]) -> bool {
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b';' | b'(' | b'`' | b'"');
    let word = begin.split(is_end).next().unwrap_or_default();
    const WORDS: [&[u8]; 16] = [
        b"ALTER",
        b"BEGIN",
        b"COMMIT",
        b"COPY",
        b"CREATE",
        b"DELETE",
        b"DROP",
        b"INSERT",
        b"LOCK",
        b"PRAGMA",
        b"REPLACE",
        b"SELECT",
        b"SET",
        b"START",
        b"TRUNCATE",
        b"USE",
    ];
    begin.starts_with(b"--")
        || begin.starts_with(b"/*")
        || begin.starts_with(b"\\")
        || WORDS.iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// Whether a line is one word, as names are. Only the first line counts, so that the form does not
/// depend on how much of a pipe has arrived; invalid names are rejected with their line number when
/// the list is read.
fn is_name(line: &[u8]) -> bool {
    line.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte >= 0x80 || b"./-_:".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form_of(text: &[u8]) -> Option<InputForm> {
        InputForm::recognise(&mut InputStream::new(text).unwrap()).unwrap()
    }

    #[test]
    fn the_form_of_an_input_shows_at_its_beginning() {
        for (begin, form) in [
            ("\u{feff}{\"handle\":\"10/a\",\"values\":[]}\n", InputForm::Json),
            ("{\"homed\":\"0.NA/10\"}\n", InputForm::Json),
            ("{\n  \"responseCode\": 1,\n  \"handle\": \"10/a\"", InputForm::Json),
            ("# comment\r\n\r\n{\"handle\"", InputForm::Json),
            ("[{\"handle\"", InputForm::Json),
            ("", InputForm::Json),
            ("{", InputForm::Json),
            (" {\n \"homedPrefixes\": []", InputForm::Export),
            ("{\"handleRecords\":{", InputForm::Export),
            ("-- MySQL dump", InputForm::Sql),
            ("--\n-- PostgreSQL database dump", InputForm::Sql),
            ("INSERT INTO handles", InputForm::Sql),
            ("insert into `handles`", InputForm::Sql),
            ("CREATE TABLE `handles` (", InputForm::Sql),
            ("DELETE FROM handles", InputForm::Sql),
            ("CREATE DATABASE /*!32312 IF NOT EXISTS*/ x;", InputForm::Sql),
            ("# comment of MySQL\nINSERT INTO handles", InputForm::Sql),
            ("/*!40101 SET NAMES utf8 */;", InputForm::Sql),
            ("\\restrict x\n", InputForm::Sql),
            ("BEGIN;\n", InputForm::Sql),
            ("10/A\t1\tURL\tx\t0\t86400\t1\t\\N\tt\tt\tt\tf\n", InputForm::Sql),
            ("CREATE 10.1045/new\n1 URL", InputForm::Batch),
            ("# one\n\ndelete 10.1045/new\n", InputForm::Batch),
            ("AUTHENTICATE PUBKEY:300:10.1045/ADMIN\n", InputForm::Batch),
            ("REMOVE 1,2:10.1045/x\n", InputForm::Batch),
            ("SESSIONSETUP\nUSESESSION:1\n", InputForm::Batch),
            ("handle,index,type,data\n", InputForm::Csv),
            ("Index;TYPE;\"handle\";data\r\n", InputForm::Csv),
            ("handle\tindex\ttype\tdata\n", InputForm::Csv),
            ("sep=|\nhandle|index|type|data\n", InputForm::Csv),
            ("handle\n10.1045/a\n", InputForm::Csv),
            ("10.1045", InputForm::Names),
            ("# homed\n\n0.NA/10.1045\r\n0.na/20.500.12345\n", InputForm::Names),
            ("# nothing else", InputForm::Names),
            ("11404\nabc\n", InputForm::Names),
            ("10.1045/a\n10.1045/b\n", InputForm::Names),
        ] {
            assert_eq!(form_of(begin.as_bytes()), Some(form), "{begin}");
        }
        for begin in ["prefix,count\n10.1045,7\n", "these are words", "<records/>", "\0\x01"] {
            assert_eq!(form_of(begin.as_bytes()), None, "{begin}");
        }
        assert_eq!(form_of(&[0; 1 << 20]), None, "and ends");
        assert_eq!(form_of(&[b' '; 1 << 20]), Some(InputForm::Json), "and ends");
    }

    /// What a terminal or another program writes line by line is answered line by line.
    #[test]
    fn one_line_is_enough() {
        use std::io::Write as _;
        for (line, form) in [("10.1045/a\n", InputForm::Names), ("{\"handle\":", InputForm::Json)] {
            let (reader, mut writer) = std::io::pipe().unwrap();
            writer.write_all(line.as_bytes()).unwrap();
            let mut input = InputStream::new(reader).unwrap();
            assert_eq!(InputForm::recognise(&mut input).unwrap(), Some(form));
            drop(writer);
        }
    }
}
