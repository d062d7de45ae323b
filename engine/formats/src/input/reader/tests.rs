use super::*;
use crate::exact;
use crate::input::OperationReader;
use handle_proto::Value;
use proptest::prelude::*;
use std::io::Read;

/// Gives a few bytes at a time, as pipes do.
struct Pieces<'b>(&'b [u8], usize);

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.0.len().min(self.1).min(buffer.len());
        let (now, rest) = self.0.split_at(len);
        buffer[..len].copy_from_slice(now);
        self.0 = rest;
        Ok(len)
    }
}

/// The entries of `text`, each as a line, which has to be the same however the bytes arrive.
fn entries(text: &[u8]) -> Result<Vec<String>, String> {
    let all = |len| -> Result<Vec<String>, String> {
        let mut stream = InputStream::new(Pieces(text, len)).map_err(|error| error.to_string())?;
        let form = InputForm::recognise(&mut stream).unwrap().ok_or("unknown")?;
        let mut reader = InputReader::new(stream, form).map_err(|error| error.to_string())?.dated(77);
        let mut found = Vec::new();
        while let Some((position, entry)) = reader.next().map_err(|error| error.to_string())? {
            found.push(format!("{position}: {}", shown(&entry)));
        }
        Ok(found)
    };
    let whole = all(usize::MAX);
    assert_eq!(all(1), whole, "byte by byte");
    whole
}

fn shown(entry: &InputEntry<'_>) -> String {
    let text = String::from_utf8_lossy;
    match entry {
        InputEntry::Record(handle, values) => {
            let value = |value: Value<'_>| {
                format!(" {}:{}={}@{}", value.index, text(value.kind), text(value.data), value.timestamp)
            };
            format!("{}{}", text(handle), values.iter().map(value).collect::<String>())
        }
        InputEntry::Deleted(handle) => format!("delete {}", text(handle)),
        InputEntry::Homed(prefix) => format!("homed {}", text(prefix)),
        InputEntry::Name(name) => format!("name {name}"),
        InputEntry::Operation(operation) => {
            format!("{} {}", operation.word(), operation.handle().unwrap_or_default())
        }
        InputEntry::Refused(handle, why) => {
            format!("refused {}: {why:.30}", handle.as_deref().unwrap_or_default())
        }
    }
}

const VALUES: &str = r#""values":[{"index":1,"type":"URL","data":"x"}]"#;

#[test]
fn one_record_is_the_same_in_every_form() {
    let line = format!("{{\"handle\":\"10/A\",{VALUES}}}");
    let indented = format!("{{\n  \"responseCode\": 1,\n  \"handle\": \"10/A\",\n  {VALUES}\n}}\n");
    let export = format!("{{\"homedPrefixes\":[],\"handleRecords\":{{\"10/A\":{line}}}}}");
    for (text, position) in [
        (line.clone(), "line 1"),
        (format!("\u{feff}# comment\r\n{line}\r\n"), "line 2"),
        (indented, "line 1"),
        (format!("[{line}]"), "record 1"),
        (export, "record 1"),
        ("handle;index;type;data\n10/A;1;URL;x\n".to_owned(), "line 2"),
        ("CREATE 10/A\n1 URL 86400 1110 UTF8 x\n".to_owned(), "line 1"),
        (format!("{{\"operation\":\"create\",\"handle\":\"10/A\",{VALUES}}}"), "line 1"),
    ] {
        assert_eq!(entries(text.as_bytes()).unwrap(), [format!("{position}: 10/A 1:URL=x@77")], "{text}");
    }
    let sql = b"INSERT INTO handles VALUES ('10/A',1,'URL','x',0,86400,77,'',1,1,1,0);";
    assert_eq!(entries(sql).unwrap(), ["line 1: 10/A 1:URL=x@77"]);
    let rows = b"10/A\t1\tURL\tx\t0\t86400\t77\t\\N\tt\tt\tt\tf\n";
    assert_eq!(entries(rows).unwrap(), ["line 2: 10/A 1:URL=x@77"]);
}

#[test]
fn what_is_no_record_is_told_apart() {
    let text = format!(
        "{{\"homed\":\"0.NA/10\"}}\n{{\"handle\":\"10/D\",\"deleted\":true}}\n\
         {{\"handle\":\"10/R\",\"operation\":\"replace\",{VALUES}}}\n\
         {{\"handle\":\"10/M\",\"operation\":\"remove\",\"indexes\":[1,2]}}\n\
         {{\"handle\":\"10/B\",\"operation\":\"burn\"}}\n{{\"handle\":\"10/V\",\"values\":7}}\nx\n"
    );
    assert_eq!(
        entries(text.as_bytes()).unwrap(),
        [
            "line 1: homed 0.NA/10",
            "line 2: delete 10/D",
            "line 3: replace 10/R",
            "line 4: remove 10/M",
            "line 5: refused 10/B: operation: none of create, rep",
            "line 6: refused 10/V: values: not a list",
            "line 7: refused : not JSON: expected value at li",
        ]
    );
    let batch =
        "CREATE 10/F\n1 URL 1 1110 FILE x\n\nDELETE 10/D\nADD 10/A\n1 URL 1 1110 UTF8 x\n\nDELETE x\n";
    assert_eq!(
        entries(batch.as_bytes()).unwrap(),
        [
            "line 1: create 10/F",
            "line 4: delete 10/D",
            "line 5: add 10/A",
            "line 8: refused : \"x\" is not a handle: expected "
        ]
    );
    let names = "# names\r\n\r\n10/A\r\n 10/B \n";
    assert_eq!(entries(names.as_bytes()).unwrap(), ["line 3: name 10/A", "line 4: name 10/B"]);
    assert_eq!(entries(b"handle\n10/A\n10/A\n").unwrap(), ["line 2: name 10/A", "line 3: name 10/A"]);
}

#[test]
fn rows_of_a_table_are_put_together() {
    let table = "handle,index,type,data,permissions,timestamp\n10/A,1,URL,a,,\n10/A,2,T,b,1100,2020-01-01\n\
                 10/B,x,URL,c,,\n10/A,3,URL,d,,\n";
    assert_eq!(
        entries(table.as_bytes()).unwrap(),
        [
            "line 2: 10/A 1:URL=a@77 2:T=b@1577836800",
            "line 4: refused 10/B: line 4: index: not a whole num",
            "line 5: 10/A 3:URL=d@77",
        ]
    );
    assert_eq!(entries(b"handle,index\n10/A,1\n").unwrap_err()[..29], *"there is no column type: the ");
}

#[test]
fn records_that_json_cannot_represent_come_back() {
    let value = Value::new(7, b"\xffT", b"\0");
    let text = exact::record_to_json(b"10/\xff", [value]).to_string();
    let mut reader = InputReader::new(InputStream::new(text.as_bytes()).unwrap(), InputForm::Json).unwrap();
    let Some((_, InputEntry::Record(handle, values))) = reader.next().unwrap() else { panic!("a record") };
    assert_eq!((handle, values.iter().collect::<Vec<_>>()), (&b"10/\xff"[..], vec![value]));
    let damaged = text.replace("\"exact\":{", "\"exact\":{\"homed\":1,");
    assert!(entries(damaged.as_bytes()).unwrap()[0].contains("refused"), "{damaged}");
}

#[test]
fn every_form_is_read_as_operations() {
    let operations = |text: &str| -> Vec<String> {
        let reader = OperationReader::new(InputStream::new(text.as_bytes()).unwrap()).unwrap();
        let shown = |block: Result<BatchBlock, InvalidBlock>| match block {
            Ok(BatchBlock { line, operation }) => {
                format!("{line} {} {}", operation.word(), operation.handle().unwrap_or_default())
            }
            Err(invalid) => format!("invalid {invalid}"),
        };
        reader.map(|block| shown(block.unwrap())).collect()
    };
    assert_eq!(
        operations("\u{feff}# c\nAUTHENTICATE SECKEY:300:10/A\nx\n\nDELETE 10/A\n"),
        ["2 authenticate ", "5 delete 10/A"]
    );
    assert_eq!(
        operations("handle,index,type,data\n10/A,1,URL,x\n10/A,2,URL,x\n10/B,1,URL,x\n"),
        ["2 create 10/A", "4 create 10/B"]
    );
    assert_eq!(
        operations(&format!(
            "{{\"handle\":\"10/A\",{VALUES}}}\n{{\"handle\":\"10/A\",\"operation\":\"replace\",{VALUES}}}\nx\n"
        )),
        ["1 create 10/A", "2 replace 10/A", "invalid line 3: not JSON: expected value at line 1 column 1"]
    );
    assert_eq!(
        operations("what is this"),
        [
            "invalid line 1: \"what\" is not an operation: CREATE, ADD, MODIFY, DELETE, REMOVE, HOME, UNHOME, AUTHENTICATE or SESSIONSETUP begins a block"
        ]
    );
    assert_eq!(operations(""), Vec::<String>::new());
}

#[test]
fn what_does_not_end_ends_with_an_error() {
    for (begin, form) in [
        ("", InputForm::Names),
        ("", InputForm::Json),
        ("[\"", InputForm::Json),
        ("{\"handleRecords\":{\"", InputForm::Export),
        ("INSERT INTO handles VALUES ('", InputForm::Sql),
        ("handle,index,type,data\n\"", InputForm::Csv),
        ("", InputForm::Batch),
    ] {
        let endless = begin.as_bytes().chain(io::repeat(b'x').take(64 << 20));
        let mut reader = match InputReader::new(InputStream::new(endless).unwrap(), form) {
            Ok(reader) => reader,
            Err(_) => continue,
        };
        let outcome = reader.next();
        assert!(matches!(outcome, Err(_) | Ok(Some((_, InputEntry::Refused(..))))), "{form:?}: {outcome:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_end_in_entries_or_an_error(pieces in prop::collection::vec(prop::sample::select(vec![
        &b"{\"handle\":\"10/a\",\"values\":[]}"[..], b"{", b"}", b"[", b"]", b"\"", b",", b"\n", b"\r\n", b"#", b"10/a", b"handle;", b"index;type;data\n",
        b"CREATE 10/a\n1 URL 1 1110 UTF8 x\n", b"DELETE ", b"INSERT INTO handles VALUES (", b"\xff", b"\xef\xbb\xbf", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\t1\t", b"sep=;\n",
    ]), 0..30)) {
        let _ = entries(&pieces.concat());
    }
}
