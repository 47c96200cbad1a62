//! What the API server refuses in a NodeIPPool, as CEL rules of its definition.
//!
//! Each rule names the field, the value and what would be right. CEL has addresses and networks but can't compare two
//! addresses, and the server refuses rules whose cost it can't bound, such as splitting a string. So order is found by
//! networks: two addresses first differ in one bit, and the one in which it is set is above ([`above`]). The controller
//! finds what CEL can't (other pools, excludes that together leave nothing).

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// One rule of `x-kubernetes-validations`.
struct Rule {
    /// The field, relative to the schema that has the rule.
    field: &'static str,
    rule: String,
    /// A CEL expression that returns the message.
    message: String,
    reason: &'static str,
}

impl Rule {
    fn invalid(field: &'static str, rule: String, message: impl Into<String>) -> Rule {
        Rule {
            field,
            rule,
            message: message.into(),
            reason: "FieldValueInvalid",
        }
    }

    /// A rule about an update.
    fn forbidden(field: &'static str, rule: String, message: impl Into<String>) -> Rule {
        Rule {
            reason: "FieldValueForbidden",
            ..Rule::invalid(field, rule, message)
        }
    }
}

fn put(schema: &mut Schema, rules: Vec<Rule>) {
    let rules: Vec<Value> = rules
        .into_iter()
        .map(|rule| {
            json!({
                "rule": squeezed(&rule.rule),
                "messageExpression": squeezed(&rule.message),
                "fieldPath": rule.field,
                "reason": rule.reason,
            })
        })
        .collect();
    schema.insert("x-kubernetes-validations".to_owned(), rules.into());
}

/// One line, so that the definition's text does not depend on the layout of this file.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The lengths of networks, each with its successor: `{'/0':'/1',..}`.
fn lengths() -> String {
    let pairs: Vec<String> = (0..128)
        .map(|length| format!("'/{length}':'/{}'", length + 1))
        .collect();
    format!("{{{}}}", pairs.join(","))
}

/// Address `a` is above address `b`; false for two families. There is a network that contains both, and its upper half
/// contains only `a`.
fn above(a: &str, b: &str) -> String {
    format!(
        "{lengths}.exists(k, v, isCIDR({a} + v) && cidr({a} + k).containsIP({b}) && !cidr({a} + v).containsIP({b})
        && !(cidr({a} + k).masked().ip() == cidr({a} + v).masked().ip()))",
        lengths = lengths()
    )
}

/// Address `a` is the last one of `cidr`: every host bit is set.
fn is_last(a: &str, cidr: &str) -> String {
    format!(
        "{lengths}.all(k, v, !isCIDR({a} + v) || cidr({a} + v).prefixLength() <= cidr({cidr}).prefixLength()
        || !(cidr({a} + k).masked().ip() == cidr({a} + v).masked().ip()))",
        lengths = lengths()
    )
}

/// Binds a name to an expression. The server's cost estimate then knows its size, and it is evaluated once instead of
/// in each iteration.
fn with(name: &str, text: &str, rule: &str) -> String {
    format!("[{text}].exists({name}, {rule})")
}

/// The address in a CIDR's text.
fn address(cidr: &str) -> String {
    format!("{cidr}.substring(0, {cidr}.indexOf('/'))")
}

/// An entry of an exclude list as a CIDR's text.
fn block(entry: &str) -> String {
    format!(
        "({entry}.contains('/') ? {entry} : {entry} + ({entry}.contains(':') ? '/128' : '/32'))"
    )
}

/// The address of an entry of an exclude list.
fn entry_address(entry: &str) -> String {
    format!("({entry}.contains('/') ? {} : {entry})", address(entry))
}

/// The rules of one range.
pub(super) fn of_range(schema: &mut Schema) {
    let mut rules = vec![Rule::invalid(
        ".cidr",
        "isCIDR(self.cidr)".to_owned(),
        r#"'"' + self.cidr + '" is no network; give one such as 10.10.10.0/24 or fd00:10::/64'"#,
    )];
    rules.extend(bound("start", ".start"));
    rules.extend(bound("end", ".end"));
    rules.push(Rule::invalid(
        ".end",
        format!(
            "!has(self.start) || !has(self.end) || !isIP(self.start) || !isIP(self.end) || !({})",
            above("self.start", "self.end")
        ),
        "self.end + ' is below the start ' + self.start + '; swap them'",
    ));
    rules.extend(excludes());
    rules.extend(inside("gateway", ".gateway"));
    put(schema, rules);
}

/// An optional address is valid, and in the range's network.
fn inside(name: &str, field: &'static str) -> [Rule; 2] {
    [
        Rule::invalid(
            field,
            format!("!has(self.{name}) || isIP(self.{name})"),
            format!(
                r#"'"' + self.{name} + '" is no address; give an IPv4 or IPv6 address of ' + self.cidr"#
            ),
        ),
        Rule::invalid(
            field,
            format!(
                "!has(self.{name}) || !isIP(self.{name}) || !isCIDR(self.cidr) || cidr(self.cidr).containsIP(self.{name})"
            ),
            format!(
                "self.{name} + (ip(self.{name}).family() == cidr(self.cidr).ip().family()
                ? ' lies outside of ' : ' is of another family than ') + self.cidr + '; give an address of that network'"
            ),
        ),
    ]
}

fn bound(name: &str, field: &'static str) -> Vec<Rule> {
    let mut rules = Vec::from(inside(name, field));
    let value = format!("self.{name}");
    rules.push(Rule::invalid(
        field,
        format!(
            "!has({value}) || !isIP({value}) || !isCIDR(self.cidr)
            || cidr(self.cidr).prefixLength() >= (ip({value}).family() == 4 ? 31 : 127)
            || !(ip({value}) == cidr(self.cidr).masked().ip() || (ip({value}).family() == 4 && {last}))",
            last = is_last(&value, "self.cidr")
        ),
        format!(
            "{value} is the first or the last address of ' + self.cidr + ', which no host can have; give one between them'"
        )
        .replacen(&value, &format!("{value} + '"), 1),
    ));
    rules
}

fn excludes() -> Vec<Rule> {
    let readable = "(isIP(e) || isCIDR(e))";
    let bounds = "isCIDR(self.cidr) && (!has(self.start) || isIP(self.start)) && (!has(self.end) || isIP(self.end))
        && self.exclude.all(e, isIP(e) || isCIDR(e))";
    // Disjoint networks, or the entry ends before the start, or starts after the end.
    let outside = format!(
        "!(cidr(self.cidr).containsIP(a) || cidr(b).containsIP(cidr(self.cidr).ip()))
        || (has(self.start) && !cidr(b).containsIP(self.start) && {before})
        || (has(self.end) && !cidr(b).containsIP(self.end) && {after})",
        before = above("self.start", "a"),
        after = above("a", "self.end"),
    );
    let outside = with("b", &block("e"), &with("a", &entry_address("e"), &outside));
    let overlap = "cidr(b).containsIP(cidr(c).ip()) || cidr(c).containsIP(cidr(b).ip())";
    let overlap = format!(
        "!self.exclude.exists_one(f, {})",
        with("c", &block("f"), overlap)
    );
    let overlap = with("b", &block("e"), &overlap);
    let covers = "cidr(b).containsCIDR(self.cidr) || (has(self.start) && has(self.end)
        && cidr(b).containsIP(self.start) && cidr(b).containsIP(self.end))";
    let covers = with("b", &block("e"), covers);
    let none = |fault: &str| {
        format!("!has(self.exclude) || !({bounds}) || !self.exclude.exists(e, {fault})")
    };
    let first = |fault: &str| format!("self.exclude.filter(e, {fault})[0]");
    vec![
        Rule::invalid(
            ".exclude",
            format!("!has(self.exclude) || self.exclude.all(e, {readable})"),
            format!(
                r#"'"' + {} + '" is neither an address nor a network; give one such as 10.10.10.4 or 10.10.10.8/30'"#,
                first(&format!("!{readable}"))
            ),
        ),
        Rule::invalid(
            ".exclude",
            none(&outside),
            format!(
                "{} + ' lies outside of the range and excludes nothing; remove it, or give an address of ' + self.cidr + ' between start and end'",
                first(&outside)
            ),
        ),
        Rule::invalid(
            ".exclude",
            none(&overlap),
            format!(
                "{} + ' overlaps another entry; name each address once'",
                first(&overlap)
            ),
        ),
        Rule::invalid(
            ".exclude",
            none(&covers),
            format!(
                "{} + ' excludes the whole range; leave addresses to allocate'",
                first(&covers)
            ),
        ),
    ]
}

/// Range `q` lies after range `r`. A missing bound is that of the network, and any of its addresses stands for it.
fn after(q: &str, r: &str) -> String {
    let low = format!(
        "(has({q}.start) ? {q}.start : {})",
        address(&format!("{q}.cidr"))
    );
    let high = format!(
        "(has({r}.end) ? {r}.end : {})",
        address(&format!("{r}.cidr"))
    );
    let rule = format!(
        "({above}) && (has({q}.start) || !cidr({q}.cidr).containsIP(h)) && (has({r}.end) || !cidr({r}.cidr).containsIP(l))",
        above = above("l", "h")
    );
    with("l", &low, &with("h", &high, &rule))
}

/// A range's values can be parsed.
fn sound(r: &str) -> String {
    format!(
        "(isCIDR({r}.cidr) && (!has({r}.start) || isIP({r}.start)) && (!has({r}.end) || isIP({r}.end)))"
    )
}

/// The rules of a whole spec: how its ranges relate, and what an update may change.
pub(super) fn of_spec(schema: &mut Schema) {
    let mut rules = ranges();
    rules.extend(extras());
    rules.extend(growth());
    put(schema, rules);
}

fn ranges() -> Vec<Rule> {
    let family = "(!isCIDR(r.cidr) || !isCIDR(self.range.cidr)
        || cidr(r.cidr).ip().family() == cidr(self.range.cidr).ip().family())";
    let apart = |q: &str, r: &str| {
        format!(
            "(!{} || !{} || {} || {})",
            sound(q),
            sound(r),
            after(q, r),
            after(r, q)
        )
    };
    vec![
        Rule::invalid(
            ".ranges",
            format!("!has(self.ranges) || self.ranges.all(r, {family})"),
            format!(
                "self.ranges.map(r, !{family}, r.cidr)[0] + ' is of another family than ' + self.range.cidr + '; make a second pool for it'"
            ),
        ),
        Rule::invalid(
            ".ranges",
            format!(
                "!has(self.ranges) || self.ranges.all(r, {})",
                apart("r", "self.range")
            ),
            "'a range of the list overlaps range ' + self.range.cidr + '; name each address once'",
        ),
        Rule::invalid(
            ".ranges",
            format!(
                "!has(self.ranges) || self.ranges.all(i, r, self.ranges.all(j, q, i >= j || {}))",
                apart("r", "q")
            ),
            "'two ranges of the list overlap; name each address once'",
        ),
    ]
}

fn extras() -> Vec<Rule> {
    let of_pool = |value: &str| {
        format!(
            "!isCIDR(self.range.cidr) || cidr(self.range.cidr).containsIP({value})
            || (has(self.ranges) && self.ranges.exists(r, isCIDR(r.cidr) && cidr(r.cidr).containsIP({value})))"
        )
    };
    let reserved = "self.reservations[n]";
    let wrong = format!("!isIP({reserved}) || !({})", of_pool(reserved));
    // By value, because an index for each pair would exceed the server's cost limit of one rule.
    let once = "self.reservations.existsOne(m, w, w == v)";
    vec![
        Rule::invalid(
            ".gateway",
            format!(
                "!has(self.gateway) || (isIP(self.gateway) && ({}))",
                of_pool("self.gateway")
            ),
            r#"'"' + self.gateway + '" is no address of a network of this pool; give one of ' + self.range.cidr"#,
        ),
        Rule::invalid(
            ".dns",
            "!has(self.dns) || self.dns.all(d, isIP(d))".to_owned(),
            r#"'"' + self.dns.filter(d, !isIP(d))[0] + '" is no address; give the IPv4 or IPv6 address of a DNS server'"#,
        ),
        Rule::invalid(
            ".reservations",
            format!("!has(self.reservations) || self.reservations.all(n, !({wrong}))"),
            format!(
                r#"self.reservations.filter(n, {wrong}).map(n, n + ': "' + {reserved})[0] + '" is no address of this pool; give one of ' + self.range.cidr"#
            ),
        ),
        Rule::invalid(
            ".reservations",
            format!("!has(self.reservations) || self.reservations.all(n, v, {once})"),
            format!(
                "self.reservations.filter(n, [{reserved}].exists(v, !{once})).map(n, n + ': ' + {reserved})[0] + ' is reserved for two nodes; give each its own'"
            ),
        ),
        Rule::invalid(
            ".reuse-delay",
            "!has(self.reuse__dash__delay) || self.reuse__dash__delay.matches('^([0-9]{1,9}(ms|s|m|h))+$')"
                .to_owned(),
            r#"'"' + self.reuse__dash__delay + '" is no duration; give one such as 90s, 10m or 1h30m'"#,
        ),
    ]
}

/// What an update of a spec may change: the last range can grow at its end, ranges can be appended, excludes can be
/// removed. Anything else would renumber the offsets of live addresses, or remove addresses from their holders.
fn growth() -> Vec<Rule> {
    let optional = |new: &str, old: &str, field: &str| {
        format!(
            "(has({new}.{field}) == has({old}.{field}) && (!has({new}.{field}) || ({new}.{field} == {old}.{field}
            || (isIP({new}.{field}) && isIP({old}.{field}) && ip({new}.{field}) == ip({old}.{field})))))"
        )
    };
    let same_start = |new: &str, old: &str| optional(new, old, "start");
    let same_cidr = |new: &str, old: &str| {
        format!(
            "(isCIDR({new}.cidr) && isCIDR({old}.cidr) && cidr({new}.cidr).masked() == cidr({old}.cidr).masked())"
        )
    };
    // A network of one or two addresses numbers all of them; a larger one does not.
    let grown_cidr = |new: &str, old: &str| {
        format!(
            "(isCIDR({new}.cidr) && isCIDR({old}.cidr) && cidr({new}.cidr).containsCIDR({old}.cidr)
            && cidr({old}.cidr).prefixLength() < (cidr({old}.cidr).ip().family() == 4 ? 31 : 127)
            && (has({old}.start) || cidr({new}.cidr).masked().ip() == cidr({old}.cidr).masked().ip()))"
        )
    };
    let same_end = |new: &str, old: &str| optional(new, old, "end");
    let grown_end = |new: &str, old: &str| {
        format!(
            "(!has({new}.end) || (isIP({new}.end) && (has({old}.end)
            ? isIP({old}.end) && !({above}) : !cidr({old}.cidr).containsIP({new}.end))))",
            above = above(&format!("{old}.end"), &format!("{new}.end"))
        )
    };
    let excludes = |new: &str, old: &str| {
        format!(
            "(!has({new}.exclude) || (has({old}.exclude) && {new}.exclude.all(e, e in {old}.exclude)))"
        )
    };
    let gateway = |new: &str, old: &str| optional(new, old, "gateway");
    let (new, old) = ("self.range", "oldSelf.range");
    let last = "!has(oldSelf.ranges) || oldSelf.ranges.size() == 0";
    let shown =
        |range: &str, field: &str| format!("(has({range}.{field}) ? {range}.{field} : 'none')");
    let (fresh, r) = ("self.ranges[i]", "r");
    let kept = format!(
        "(i < self.ranges.size() && {start} && {excludes} && {gateway}
        && (({cidr} && {end}) || (i == oldSelf.ranges.size() - 1 && ({cidr} || {grown}) && ({end} || {end_grown}))))",
        start = same_start(fresh, r),
        excludes = excludes(fresh, r),
        gateway = gateway(fresh, r),
        cidr = same_cidr(fresh, r),
        grown = grown_cidr(fresh, r),
        end = same_end(fresh, r),
        end_grown = grown_end(fresh, r),
    );
    vec![
        Rule::forbidden(
            ".range.start",
            same_start(new, old),
            format!(
                "'can not change from ' + {} + ' to ' + {} + ', because offsets count from it; append to spec.ranges, or make another pool'",
                shown(old, "start"),
                shown(new, "start")
            ),
        ),
        Rule::forbidden(
            ".range.cidr",
            format!(
                "{} || (({last}) && {})",
                same_cidr(new, old),
                grown_cidr(new, old)
            ),
            "'can not change from ' + oldSelf.range.cidr + ' to ' + self.range.cidr + ': a pool only grows, at the end of its last range; append to spec.ranges, or make another pool'",
        ),
        Rule::forbidden(
            ".range.end",
            format!(
                "{} || (({last}) && {})",
                same_end(new, old),
                grown_end(new, old)
            ),
            format!(
                "'can not change from ' + {} + ' to ' + {} + ': a pool only grows, at the end of its last range; append to spec.ranges, or make another pool'",
                shown(old, "end"),
                shown(new, "end")
            ),
        ),
        Rule::forbidden(
            ".range.exclude",
            excludes(new, old),
            "self.range.exclude.filter(e, !has(oldSelf.range.exclude) || !(e in oldSelf.range.exclude))[0] + ' can not be added, because a pool does not shrink; make another pool'",
        ),
        Rule::forbidden(
            ".range.gateway",
            gateway(new, old),
            "'can not change, because a gateway takes an address from the pool; make another pool'",
        ),
        Rule::forbidden(
            ".gateway",
            optional("self", "oldSelf", "gateway"),
            "'can not change, because a gateway takes an address from the pool; make another pool'",
        ),
        Rule::forbidden(
            ".ranges",
            format!("{last} || (has(self.ranges) && oldSelf.ranges.all(i, r, {kept}))"),
            "'ranges are only appended, and the last one only grows at its end, because offsets run on; append a range, or make another pool'",
        ),
    ]
}

/// A map of nodes to addresses, of bounded size.
pub(super) fn reservations(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "Addresses that only the named node gets: node -> address.",
        "type": "object",
        "maxProperties": super::MAX_RESERVATIONS,
        "additionalProperties": { "type": "string", "maxLength": 45 },
    })
}
