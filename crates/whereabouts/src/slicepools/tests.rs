use berth_core::RangeSpec;
use berth_core::Space;
use berth_core::dialect::WHEREABOUTS;

use super::*;

fn mk_pool(range: &str, size: u8, nodes: &[&str]) -> SlicePool {
    let mut table = Assignments::new(Cut::new(range.parse().unwrap(), size).unwrap());
    let spec = RangeSpec::parse(range).unwrap();
    let space = Space::build(&spec, WHEREABOUTS).unwrap().0;
    table.assign(
        &nodes.iter().map(|name| NodeName::new(*name)).collect(),
        &[&space],
    );
    SlicePool {
        table,
        size_text: format!("/{size}"),
        marks: Marks::default(),
    }
}

/// As the API server would give it back.
fn stored(mut object: Value) -> Value {
    object["metadata"]["resourceVersion"] = json!("7");
    object["metadata"]["uid"] = json!("u");
    object
}

fn read(object: Value) -> StoredSlicePool {
    let page = Page::read(object).unwrap();
    let cut = page.cut().unwrap();
    assemble("net", cut, BTreeMap::from([(0, page)])).unwrap()
}

fn rows(rows: &Rows) -> Vec<String> {
    let row = |(node, slice): &(String, String)| format!("{slice} {node}");
    rows.rows.iter().map(row).collect()
}

#[test]
fn free_slices_are_listed_as_whereabouts_lists_them() {
    let pool = mk_pool("10.0.0.0/8", 10, &["a", "b"]);
    let object = render("net", &pool, None)[&0].object("net");
    assert_eq!(
        object["status"]["allocations"],
        json!([
            { "nodeName": "a", "sliceRange": "10.0.0.0/10" },
            { "nodeName": "b", "sliceRange": "10.64.0.0/10" },
            { "nodeName": "", "sliceRange": "10.128.0.0/10" },
            { "nodeName": "", "sliceRange": "10.192.0.0/10" },
        ])
    );
    assert_eq!(
        object["spec"],
        json!({ "range": "10.0.0.0/8", "sliceSize": "/10" })
    );
    assert_eq!(read(stored(object)).pool, pool);
}

/// What another controller wrote, in its own order, is written back as it was.
#[test]
fn a_foreign_document_keeps_its_order_and_what_can_not_be_read() {
    let object = stored(json!({
        "metadata": {
            "annotations": { "theirs": "x" },
            "ownerReferences": [
                { "kind": "NetworkAttachmentDefinition", "name": "nad", "uid": "nad-uid" },
                { "kind": "Other", "name": "o", "uid": "o-uid" },
            ],
        },
        "spec": { "range": "10.0.0.0/24", "sliceSize": "26" },
        "status": { "allocations": [
            { "nodeName": "z", "sliceRange": "10.0.0.64/26" },
            { "nodeName": "", "sliceRange": "10.0.0.0/26" },
            { "nodeName": "y", "sliceRange": "nonsense" },
            { "nodeName": "x", "sliceRange": "10.0.0.64/26" },
            { "nodeName": "b", "sliceRange": "10.0.0.128/26" },
        ]},
    }));
    let before = read(object);
    assert_eq!(before.owners, ["nad-uid"]);
    assert_eq!(before.unparsed.len(), 2, "{:?}", before.unparsed);
    let mut pool = before.pool.clone();
    pool.marks.disjoint = true;
    let after = render("net", &pool, Some(&before));
    let expected = [
        "10.0.0.64/26 z",
        "10.0.0.0/26 ",
        "nonsense y",
        "10.0.0.64/26 x",
        "10.0.0.128/26 b",
        "10.0.0.192/26 ",
    ];
    assert_eq!(rows(&after[&0]), expected);
    let merge = after[&0].merge(&before.pages[&0]);
    assert_eq!(merge["spec"]["sliceSize"], "26", "as it was written");
    assert_eq!(
        merge["metadata"]["annotations"],
        json!({ DISJOINT: "true" })
    );
    assert_eq!(
        merge["metadata"]["ownerReferences"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(merge["metadata"]["resourceVersion"], "7");
}

#[test]
fn epochs_and_marks_survive_and_go_when_they_are_no_longer_true() {
    let mut pool = mk_pool("10.0.0.0/24", 26, &["a"]);
    let (slice, a) = ("10.0.0.0/26".parse().unwrap(), NodeName::new("a"));
    pool.table.recall(slice, &a).unwrap();
    let object = render("net", &pool, None)[&0].object("net");
    let told = &object["metadata"]["annotations"][RECALLED];
    assert_eq!(told, r#"["10.0.0.0/26"]"#);
    let recalled = read(stored(object));
    assert!(recalled.pool == pool && recalled.pool.table.is_recalled(slice));
    pool.table.reclaim(slice, &a).unwrap();
    let merge = render("net", &pool, Some(&recalled))[&0].merge(&recalled.pages[&0]);
    assert!(merge["metadata"]["annotations"][RECALLED].is_null());
    pool.marks = Marks {
        managed: true,
        networks: vec!["ns/a".into(), "ns/b".into()],
        disjoint: true,
        conditions: vec![Condition::default()],
    };
    let object = render("net", &pool, None)[&0].object("net");
    assert_eq!(
        object["metadata"]["annotations"][EPOCHS],
        r#"{"10.0.0.0/26":1}"#
    );
    let before = read(stored(object));
    assert_eq!(before.pool, pool);
    pool.marks = Marks::default();
    let merge = render("net", &pool, Some(&before))[&0].merge(&before.pages[&0]);
    let annotations = merge["metadata"]["annotations"].as_object().unwrap();
    assert!(annotations[DISJOINT].is_null() && annotations[CONDITIONS].is_null());
    assert!(merge.get("status").is_none(), "rows did not change");
}

#[test]
fn berth_15_24_unknown_fields_of_conditions_are_kept() {
    let mut pool = mk_pool("10.0.0.0/24", 26, &["a"]);
    pool.marks.conditions = vec![Condition {
        kind: "Refused".into(),
        ..Condition::default()
    }];
    let mut object = render("net", &pool, None)[&0].object("net");
    let text = object["metadata"]["annotations"][CONDITIONS].as_str();
    let mut newer: Value = serde_json::from_str(text.unwrap()).unwrap();
    newer[0]["severity"] = json!("high");
    object["metadata"]["annotations"][CONDITIONS] = json!(newer.to_string());
    let before = read(stored(object));
    pool.marks.conditions[0].message = "changed".into();
    let page = &render("net", &pool, Some(&before))[&0];
    let text = &page.annotations[CONDITIONS];
    let now: Value = serde_json::from_str(text).unwrap();
    assert_eq!(
        (&now[0]["severity"], &now[0]["message"]),
        (&json!("high"), &json!("changed"))
    );
}

#[test]
fn a_large_range_lists_what_is_assigned_on_the_page_of_its_slice() {
    let names: Vec<String> = (0..9_000).map(|n| format!("node-{n:05}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let pool = mk_pool("10.0.0.0/8", 24, &names);
    let pages = render("net", &pool, None);
    let sizes: Vec<usize> = pages.values().map(|rows| rows.rows.len()).collect();
    assert_eq!(sizes, [8_192, 808]);
    let object = pages[&1].object("net--p1");
    assert_eq!(page_in(&object, "net"), Some(1));
    assert_eq!(page_in(&object, "other"), None);
    let read = |number: &u128| Page::read(stored(pages[number].object("x"))).unwrap();
    let all = pages.keys().map(|number| (*number, read(number))).collect();
    let again = assemble("net", pool.table.cut(), all).unwrap();
    assert_eq!(again.pool, pool);
    let same = render("net", &again.pool, Some(&again));
    assert!(
        same.iter()
            .all(|(number, rows)| again.pages[number].rows == *rows)
    );
}

/// The longest names that Kubernetes takes would not fit; the longest that clusters have do.
#[test]
fn a_full_page_stays_under_what_etcd_takes() {
    let names: Vec<String> = (0..8_192).map(|n| format!("{n:0140}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let pool = mk_pool("10.0.0.0/8", 21, &names);
    let object = render("net", &pool, None)[&0].object("net");
    let size = object.to_string().len();
    assert!(size < crate::ETCD_REQUEST_LIMIT, "{size}");
}

#[test]
fn what_is_no_pool_is_named_and_left() {
    for (spec, word) in [
        (json!({ "range": "x", "sliceSize": "/26" }), "spec.range"),
        (
            json!({ "range": "10.0.0.0/24", "sliceSize": "?" }),
            "spec.sliceSize",
        ),
        (json!({ "range": "10.0.0.0/24", "sliceSize": "/8" }), "/8"),
        (json!({}), "spec.range"),
    ] {
        let page = Page::read(stored(json!({ "metadata": {}, "spec": spec }))).unwrap();
        let why = page.cut().unwrap_err();
        assert!(why.contains(word), "{why}");
    }
}

#[test]
fn what_a_recut_dropped_is_not_listed_any_more() {
    let before = read(stored(
        render("net", &mk_pool("10.0.0.0/24", 26, &["a", "b"]), None)[&0].object("net"),
    ));
    let cut = Cut::new("10.0.0.0/24".parse().unwrap(), 25).unwrap();
    let mut pool = before.pool.clone();
    pool.table = pool.table.recut(cut).table;
    pool.size_text = "/25".into();
    let spec = RangeSpec::parse("10.0.0.0/24").unwrap();
    let space = Space::build(&spec, WHEREABOUTS).unwrap().0;
    let nodes = ["a", "b"].map(NodeName::new).into_iter().collect();
    pool.table.assign(&nodes, &[&space]);
    let after = render("net", &pool, Some(&before));
    assert_eq!(rows(&after[&0]), ["10.0.0.0/25 a", "10.0.0.128/25 b"]);
}

/// A node more is told in a few words, whatever the length of the table.
#[test]
fn a_few_rows_are_written_without_the_table() {
    let before = read(stored(
        render("net", &mk_pool("10.0.0.0/16", 24, &["a"]), None)[&0].object("net"),
    ));
    let page = &before.pages[&0];
    let after = |pool: &SlicePool| {
        render("net", pool, Some(&before))[&0]
            .steps(page)
            .map(|steps| steps.to_json())
    };
    let steps = after(&mk_pool("10.0.0.0/16", 24, &["a", "b"]));
    let version = json!({ "op": "test", "path": "/metadata/resourceVersion", "value": "7" });
    let row = json!({ "op": "add", "path": "/status/allocations/1/nodeName", "value": "b" });
    assert_eq!(steps, Some(vec![version, row]));
    let names: Vec<String> = (0..100).map(|n| format!("a{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(after(&mk_pool("10.0.0.0/16", 24, &names)), None, "too many");
    let mut marked = before.pool.clone();
    marked.marks.disjoint = true;
    assert_eq!(after(&marked), None, "it has no annotations to add to");
    assert_eq!(after(&mk_pool("10.0.0.0/16", 25, &["a"])), None, "cut anew");
}

#[test]
fn an_annotation_is_added_changed_and_removed_in_steps() {
    let mut pool = mk_pool("10.0.0.0/24", 26, &["a"]);
    pool.marks.networks = vec!["ns/a".into()];
    pool.marks.managed = true;
    let before = read(stored(render("net", &pool, None)[&0].object("net")));
    pool.marks.networks = vec!["ns/b".into()];
    pool.marks.managed = false;
    pool.marks.disjoint = true;
    let steps = render("net", &pool, Some(&before))[&0]
        .steps(&before.pages[&0])
        .map(|steps| steps.to_json());
    let told = |steps: Vec<Value>| {
        let one = |step: &Value| format!("{} {}", step["op"], step["path"]).replace('"', "");
        steps.iter().map(one).collect::<Vec<String>>()
    };
    let path = |name: &str| format!("/metadata/annotations/{}", name.replace('/', "~1"));
    let mut told = told(steps.unwrap());
    told.sort();
    let mut expected = [
        "test /metadata/resourceVersion".to_owned(),
        format!("remove {}", path(MANAGED)),
        format!("add {}", path(DISJOINT)),
        format!("add {}", path(NETWORKS)),
    ];
    expected.sort();
    assert_eq!(told, expected);
}

/// The epoch of a slice outlives its row: whoever has it next has it at the next one (I8).
#[test]
fn a_page_stays_for_the_epochs_of_slices_that_nobody_has() {
    let mut pool = mk_pool("10.0.0.0/8", 24, &[]);
    let (slice, node): (Prefix, _) = ("10.32.0.0/24".parse().unwrap(), NodeName::new("a"));
    pool.table.restore(slice, node.clone()).unwrap();
    pool.table.recall(slice, &node).unwrap();
    pool.table.reclaim(slice, &node).unwrap();
    let pages = render("net", &pool, None);
    let numbers: Vec<u128> = pages.keys().copied().collect();
    assert_eq!(numbers, [0, 1]);
    let read = |number: &u128| Page::read(stored(pages[number].object("x"))).unwrap();
    let all = numbers.iter().map(|number| (*number, read(number)));
    let again = assemble("net", pool.table.cut(), all.collect()).unwrap();
    assert_eq!(again.pool.table.epoch(slice), Epoch(1));
}

#[test]
fn pages_are_written_where_slices_go_before_they_are_where_slices_leave() {
    let cut = |range: &str| Cut::new(range.parse().unwrap(), 24).unwrap();
    let mut small = mk_pool("10.128.0.0/10", 24, &[]);
    for slice in ["10.128.0.0/24", "10.160.0.0/24"] {
        let node = NodeName::new(slice);
        small.table.restore(slice.parse().unwrap(), node).unwrap();
    }
    let mut large = small.clone();
    large.table = small.table.recut(cut("10.0.0.0/8")).table;
    let pages = |pool: &SlicePool| -> BTreeMap<u128, Page> {
        let rows = render("net", pool, None).into_iter();
        let page = |rows: Rows| Page::read(stored(rows.object("x"))).unwrap();
        rows.map(|(number, rows)| (number, page(rows))).collect()
    };
    let (few, many) = (pages(&small), pages(&large));
    let up = order(&large, &few, &render("net", &large, None));
    assert_eq!(up, [5, 4, 1, 0]);
    let down = order(&small, &many, &render("net", &small, None));
    assert_eq!(down, [0, 1, 5, 4]);
    // One that was stopped before its last pages went.
    let mut left = few;
    left.extend(many.into_iter().filter(|(number, _)| *number > 0));
    let rest = order(&large, &left, &render("net", &large, None));
    assert_eq!(rest, [1, 5, 4, 0]);
}
