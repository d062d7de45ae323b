use super::*;
use proptest::prelude::*;

fn read(text: &[u8]) -> Result<Vec<Item>, DumpError> {
    let mut dump = Dump::new(text);
    let mut items = Vec::new();
    while let Some(item) = dump.next()? {
        items.push(item);
    }
    Ok(items)
}

fn value(index: i32, kind: &[u8], data: &[u8]) -> ValueBuf {
    let mut value = Value::new(index, kind, data);
    value.timestamp = 1_700_000_000;
    (&value).into()
}

fn record(handle: &[u8], values: impl Into<Vec<ValueBuf>>) -> Item {
    Item::Record(handle.to_vec(), values.into())
}

const MYSQL: &[u8] = br"-- MySQL dump 10.13  Distrib 8.0.36
/*!40101 SET NAMES utf8mb4 */;
DROP TABLE IF EXISTS `nas`;
CREATE TABLE `nas` (`na` varbinary(255) NOT NULL, PRIMARY KEY (`na`));
INSERT INTO `nas` VALUES (_binary '0.NA/10.1045'),('0.NA/20.500');
CREATE TABLE `handles` (`handle` varbinary(255) NOT NULL COMMENT 'INSERT INTO `handles`; no', KEY `x` (`data`(300)));
INSERT INTO `handles` VALUES (_binary '10.1045/A\'B',1,_binary 'URL',_binary 'http://a/;(),\\x\n',0,86400,1700000000,'',1,1,1,0),
(_binary '10.1045/A\'B',2,'EMAIL','it''s',0,86400,1700000000,NULL,1,1,1,0);
INSERT INTO `handles` VALUES (0x31302E313034352F42,100,X'484553',0x00FF10,0,86400,1700000000,'',1,1,1,0);
INSERT INTO `others` VALUES (1,'handles');
";

const POSTGRES: &[u8] = br#"--
-- PostgreSQL database dump
--
CREATE TABLE public.handles (handle bytea NOT NULL, idx integer);
COPY public.nas (na) FROM stdin;
0.NA/10.1045
\.

COPY public.others (a, b) FROM stdin;
1	INSERT INTO handles VALUES (
\.
COPY public.handles (idx, handle, type, data, ttl_type, ttl, "timestamp", refs, admin_read, admin_write, pub_read, pub_write) FROM stdin;
1	\\x31302e313034352f41	\\x55524c	\\x687474703a2f2f61	0	86400	1700000000	\N	t	t	t	f
2	10.1045/B	TEXT	a\\b\tc\nd	0	86400	1700000000		t	t	t	f
\.
INSERT INTO handles (handle, idx, type, data, ttl_type, ttl, timestamp, refs, admin_read, admin_write, pub_read, pub_write) VALUES ('10.1045/C', 3, 'URL', '\x6162', 0, 86400, 1700000000, '', true, true, true, false);
INSERT INTO handles VALUES ('10.1045/D', 4, 'a\b', E'x\n', 0, 86400, 1700000000, '', '1', '1', '1', '0');
"#;

#[test]
fn dumps_of_mysql_read() {
    let expected = [
        Item::Homed(b"0.NA/10.1045".to_vec()),
        Item::Homed(b"0.NA/20.500".to_vec()),
        record(b"10.1045/A'B", [value(1, b"URL", b"http://a/;(),\\x\n"), value(2, b"EMAIL", b"it's")]),
        record(b"10.1045/B", [value(100, b"HES", b"\0\xff\x10")]),
    ];
    assert_eq!(read(MYSQL).unwrap(), expected);
}

#[test]
fn dumps_of_postgresql_read() {
    let expected = [
        Item::Homed(b"0.NA/10.1045".to_vec()),
        record(b"10.1045/A", [value(1, b"URL", b"http://a")]),
        record(b"10.1045/B", [value(2, b"TEXT", b"a\\b\tc\nd")]),
        record(b"10.1045/C", [value(3, b"URL", b"ab")]),
        record(b"10.1045/D", [value(4, b"a\\b", b"x\n")]),
    ];
    assert_eq!(read(POSTGRES).unwrap(), expected);
}

/// Output of `mysqldump` with each option that changes the form of rows.
#[test]
fn rows_read_in_every_form_that_tools_write() {
    let values = "('10/A',1,'URL','x',0,86400,1700000000,'',1,1,1,0)";
    let columns = COLUMNS.map(|name| format!("`{name}`")).join(", ");
    for begin in [
        "INSERT INTO `handles` VALUES",
        "INSERT  IGNORE INTO `handles` VALUES\n",
        "REPLACE INTO `handles` VALUES ",
        "replace into `service`.`handles` VALUES ",
        "CREATE OR REPLACE VIEW `v` AS SELECT 1;\nLOCK TABLES `handles` WRITE;\nINSERT INTO `handles` VALUES ",
    ] {
        let items = read(format!("{begin}{values};\nUNLOCK TABLES;\n").as_bytes()).unwrap();
        assert_eq!(items, [record(b"10/A", [value(1, b"URL", b"x")])], "{begin}");
    }
    let complete = format!("INSERT INTO `handles` ({columns}) VALUES {values};");
    assert_eq!(read(complete.as_bytes()).unwrap().len(), 1);
    for is_set in ["b'1'", "_binary '\u{1}'", "0x01", "'t'", "TRUE"] {
        let bits = format!(
            "INSERT INTO `handles` VALUES ('10/A',1,'URL','x',0,86400,1700000000,'',{is_set},{is_set},{is_set},b'0');"
        );
        let items = read(bits.as_bytes()).unwrap();
        assert_eq!(items, [record(b"10/A", [value(1, b"URL", b"x")])], "{is_set}");
    }
}

#[test]
fn every_column_counts() {
    let text = "INSERT INTO handles VALUES \
        ('10/A',7,'URL','x',1,1800000000,-1770359296,'1:10/B%000920:10/C:D%00097:%00E9%0025\\\\t',1,0,0,1);";
    let items = read(format!("SET x = `y`;{text}").as_bytes()).unwrap();
    let Item::Record(_, values) = &items[0] else { panic!("a record") };
    let view = values[0].view();
    assert_eq!((view.index, view.ttl, view.timestamp), (7, Ttl::absolute(1_800_000_000), 2_524_608_000));
    assert_eq!(view.permissions, Permissions(0b1001));
    let references: Vec<_> = view.references.iter().map(|reference| reference.to_string()).collect();
    assert_eq!(references, ["1:10/B", "20:10/C:D", "7:é%\t"]);
    let nulls = b"INSERT INTO handles VALUES ('10/A',7,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1,NULL);";
    let Item::Record(_, values) = &read(nulls).unwrap()[0] else { panic!("a record") };
    let view = values[0].view();
    assert_eq!((view.kind, view.data, view.ttl, view.timestamp), (&b""[..], &b""[..], Ttl::relative(0), 0));
    assert_eq!(view.permissions, Permissions::PUBLIC_READ);
}

/// A row as `COPY` writes it.
const ROW: &str = "10/A\t1\tURL\thttp://a\t0\t86400\t1700000000\t\\N\tt\tt\tt\tf\n";

#[test]
fn rows_of_copy_end_with_their_mark() {
    let copy = format!("COPY handles FROM stdin;\n{ROW}");
    let expected = [record(b"10/A", [value(1, b"URL", b"http://a")])];
    assert_eq!(read(format!("{copy}\\.\n").as_bytes()).unwrap(), expected);
    for cut in ["", "10/B", "10/B\t1\t", "\\"] {
        let error = read(format!("{copy}{cut}").as_bytes()).unwrap_err().to_string();
        assert!(error.contains("`\\.`") || error.contains("end of a field"), "{cut:?}: {error}");
    }
    let other = read(b"COPY other (a) FROM stdin;\n1\n").unwrap_err().to_string();
    assert!(other.contains("`\\.`"), "{other}");
}

#[test]
fn rows_without_a_statement_end_with_the_file() {
    assert!(Dump::<&[u8]>::has_bare_rows(ROW.as_bytes()));
    assert!(Dump::<&[u8]>::has_bare_rows(ROW.replace("\t0\t", "\t\\N\t").as_bytes()));
    for other in ["", "10/A", "handle\tidx\ttype\tdata\tttl_type", "10/A\t1\tURL", "10/A\tx\tURL\ta\t0\t1"] {
        assert!(!Dump::<&[u8]>::has_bare_rows(other.as_bytes()), "{other}");
    }
    let items = |text: &str| -> Result<Vec<Item>, DumpError> {
        let mut dump = Dump::of_rows(text.as_bytes());
        std::iter::from_fn(|| dump.next().transpose()).collect()
    };
    let one = record(b"10/A", [value(1, b"URL", b"http://a")]);
    assert_eq!(items(&format!("{ROW}{}", ROW.replace("10/A", "10/B"))).unwrap().len(), 2);
    assert_eq!(items(ROW).unwrap(), [one]);
    for cut in [&ROW[..ROW.len() - 1], &format!("{ROW}10/B\t1")] {
        let error = items(cut).unwrap_err();
        assert!(matches!(error, DumpError::Expected(..)), "{cut}: {error}");
    }
}

#[test]
fn a_dump_that_names_its_tool_is_complete_with_its_last_line() {
    let lacks_end = |text: &str| {
        let mut dump = Dump::new(text.as_bytes());
        while dump.next().unwrap().is_some() {}
        dump.lacks_end()
    };
    let insert = "INSERT INTO handles VALUES ('10/A',1,'URL','x',0,1,1,'',1,1,1,0);\n";
    for (head, end) in [
        ("-- MySQL dump 10.13\n", "-- Dump completed on 2026-11-28\n"),
        ("--\n-- PostgreSQL database dump\n--\n", "--\n-- PostgreSQL database dump complete\n--\n"),
    ] {
        assert!(lacks_end(&format!("{head}{insert}")), "{head}");
        assert!(!lacks_end(&format!("{head}{insert}{end}")), "{head}");
    }
    assert!(!lacks_end(insert));
}

#[test]
fn what_does_not_read_is_said_with_its_line() {
    let row = |field: usize, text: &str| {
        let mut fields = ["'10/A'", "1", "'URL'", "'x'", "0", "1", "1", "''", "1", "1", "1", "0"];
        fields[field] = text;
        format!("\nINSERT INTO handles VALUES\n({});", fields.join(","))
    };
    for (field, text) in [
        (0, "NULL"),
        (1, "NULL"),
        (1, "'x'"),
        (1, "99999999999"),
        (4, "300"),
        (5, "99999999999"),
        (6, "-9999999999"),
        (7, "'x:10/A'"),
        (8, "'maybe'"),
    ] {
        let error = read(row(field, text).as_bytes()).unwrap_err();
        assert!(
            matches!(error, DumpError::Column(name, 3) if name == COLUMNS[field]),
            "{field} {text}: {error}"
        );
    }
    for text in [
        "INSERT INTO handles VALUES (",
        "INSERT INTO handles VALUES ('a",
        "INSERT INTO handles (a) 1;",
        "/* ",
        "COPY handles (handle) FROM stdin;\na\\",
        "INSERT INTO handles (a b",
        "INSERT INTO handles VALUES ('10/A',1,'URL','x',0,1,1,'',1,1,1,0),b;",
    ] {
        let error = read(text.as_bytes()).unwrap_err();
        assert!(matches!(error, DumpError::Expected(..)), "{text}: {error}");
    }
}

#[test]
fn a_field_may_be_so_long_and_no_longer() {
    for (len, fits) in [(FIELD_LEN_MAX, true), (FIELD_LEN_MAX + 1, false)] {
        let data = "x".repeat(len);
        let text = format!("INSERT INTO handles VALUES ('10/A',1,'URL','{data}',0,1,1,'',1,1,1,0);");
        assert_eq!(read(text.as_bytes()).is_ok(), fits, "{len}");
    }
}

#[test]
fn a_handle_that_comes_back_is_one_more_record() {
    let row = |handle: &str| format!("('{handle}',1,'URL','x',0,86400,1700000000,'',1,1,1,0)");
    let text = format!("INSERT INTO handles VALUES {},{},{};", row("10/A"), row("10/B"), row("10/A"));
    let one = || [value(1, b"URL", b"x")];
    assert_eq!(
        read(text.as_bytes()).unwrap(),
        [record(b"10/A", one()), record(b"10/B", one()), record(b"10/A", one())]
    );
}

proptest! {
    #[test]
    fn any_pieces_end_in_items_or_an_error(pieces in prop::collection::vec(prop::sample::select(vec![
        &b"INSERT INTO handles "[..], b"VALUES ", b"(", b")", b",", b"'", b"1", b";", b"\\",
        b"COPY nas (na) FROM stdin;\n", b"\t", b"\n", b"--", b"\\.", b"`",
    ]), 0..60)) {
        let _ = read(&pieces.concat());
    }
}
