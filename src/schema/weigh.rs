//! Counts the steps of validating a value, before it is validated. Pure.
//!
//! A schema that is compiled once is applied to many values, and a validator works for each keyword
//! of each application. So the keywords are measured once ([`Node`]), and a value costs the sum over
//! the schemas that are applied to it and to its parts, as if every alternative were evaluated.

use std::collections::{BTreeMap, HashMap, VecDeque};

use callboard_actors::limits::JSON_DEPTH_MAX;
use serde_json::{Map, Value};

use super::{
    bounds::{self, IN_PLACE_DEPTH_MAX, each_subschema},
    cost::{self, LARGE_PATTERN, MATCH_MAX, STATES_PER_STEP, Size},
    faults,
    pattern::{self, BACKTRACKED_BYTES_MAX},
    plain::make_plain,
};

/// Limit of (levels of the value) × (schemas applied in place at each level). All of them are on
/// the stack at once, with up to 3 KiB each in an unoptimized build; a worker's stack has 2 MiB.
const STACKED_MAX: usize = 400;

/// Most schemas that are applied to one value in place.
const IN_PLACE_MAX: usize = 2000;

/// Steps allowed for a value of any size. Real schemas and arguments need a few hundred.
const STEPS_MAX: usize = 100_000;

/// Further steps allowed for each part of the value.
const STEPS_PER_PART: usize = 100;

/// Steps that no value may exceed: about 20 ms.
const STEPS_LIMIT: usize = 400_000;

/// Steps up to which the faults are listed. Listing is expensive: it evaluates every alternative and
/// collects its errors.
const EXPLAINED_MAX: usize = 20_000;

/// Schemas and names together that are looked through for members and items that nothing has
/// evaluated, of all such keywords: a validator compiles them once more for each.
const UNEVALUATED_MAX: usize = 10_000;

/// States of all patterns together; compiling takes about 100 ns for each.
const STATES_MAX: usize = 100_000;

/// Keywords that look into a text as a document: about 30 ns a byte.
const OF_DOCUMENTS: [&str; 2] = ["contentEncoding", "contentMediaType"];

/// A compiled schema's costs.
pub(super) struct Shape {
    root: Value,
    nodes: Vec<Node>,
    /// Longest chain of schemas that are applied in place.
    chain: usize,
    /// States of all patterns.
    #[cfg_attr(
        not(feature = "mcp"),
        allow(dead_code, reason = "servers have many schemas")
    )]
    states: usize,
}

/// Whether a value may be validated, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// Validate it; list the faults if it does not fit.
    Light,
    /// Validate it, but do not list the faults: that would take too long.
    Heavy,
    /// Refuse it: it is nested deeper than this number of levels.
    TooDeep(usize),
    /// Refuse it: it needs too many steps.
    TooMuch,
}

/// Place of a schema in [`Shape::nodes`].
type Id = usize;

/// What one schema costs, and the schemas that it applies.
#[derive(Debug, Default)]
struct Node {
    /// Steps for any value.
    base: usize,
    /// Steps for each [`STATES_PER_STEP`] bytes of a text.
    of_text: usize,
    /// Whether a text is matched by the backtracking engine.
    backtracks: bool,
    /// Whether a text is read as a document.
    reads_document: bool,
    /// Whether the items are compared with one another.
    compares_items: bool,
    /// Schemas for the same value.
    in_place: Vec<Id>,
    /// Whether members or items that nothing has evaluated are looked for, for which the schemas in
    /// place are applied again.
    finds_unevaluated: bool,
    /// Schemas for items: of the first, the second and so on.
    of_places: Vec<Vec<Id>>,
    /// Schemas for each item.
    of_items: Vec<Id>,
    /// Schemas for each member.
    of_members: Vec<Id>,
    /// Schemas for each name.
    of_names: Vec<Id>,
    /// Schemas for members of a name.
    properties: BTreeMap<String, Id>,
    /// Schemas for members whose name matches a pattern, with its number of states.
    of_patterns: Vec<(usize, Id)>,
    /// Schemas in place below this one, itself included.
    asked: usize,
    /// Those schemas and the names of their properties.
    breadth: usize,
    /// The longest chain of them.
    depth: usize,
}

impl Node {
    /// Applications of each schema in place. What was evaluated is marked by applying the schemas
    /// again, and those below them at every level again.
    fn repeats(&self) -> usize {
        match self.finds_unevaluated {
            true => self.depth.max(1) + 1,
            false => 1,
        }
    }

    fn measure(&self) -> Measure {
        Measure {
            asked: self.asked,
            breadth: self.breadth,
            depth: self.depth,
        }
    }

    /// Steps of this schema's own keywords for a value.
    fn own(&self, value: &Value) -> usize {
        let of_value = match value {
            Value::String(text) => self.of_text(text.len()),
            Value::Array(items) if self.compares_items => {
                /// Up to this number, items are compared in pairs.
                const PAIRED_MAX: usize = 15;
                let times = if items.len() <= PAIRED_MAX {
                    PAIRED_MAX / 2
                } else {
                    1
                };
                cost::weight(value).saturating_mul(times)
            }
            Value::Object(members) => members.len() / 4,
            _ => 0,
        };
        self.base.saturating_add(of_value)
    }

    fn of_text(&self, bytes: usize) -> usize {
        let backtracked = match self.backtracks && bytes <= BACKTRACKED_BYTES_MAX {
            true => bytes.saturating_mul(bytes) / 16,
            false => 0,
        };
        let is_large = self.of_text > LARGE_PATTERN;
        let matched = match bytes.saturating_mul(self.of_text) {
            states if is_large && states > MATCH_MAX => usize::MAX,
            states => states / STATES_PER_STEP,
        };
        let document = if self.reads_document { bytes / 2 } else { 0 };
        matched.saturating_add(backtracked).saturating_add(document)
    }
}

impl Shape {
    /// Measures a schema; the error is why it is refused.
    pub(super) fn from_schema(mut root: Value, is_draft4: bool) -> Result<Self, String> {
        let anchors = bounds::survey(&root, is_draft4)?;
        make_plain(&mut root, &anchors, is_draft4)?;
        let mut nodes = Nodes::of(&root)?;
        if nodes.states > STATES_MAX {
            return Err(format!(
                "its patterns have more than {STATES_MAX} states; use shorter repetitions"
            ));
        }
        for id in 0..nodes.all.len() {
            nodes.measure(id, 0)?;
        }
        let states = nodes.states;
        let nodes = nodes.all;
        let looking = nodes.iter().filter(|node| node.finds_unevaluated);
        let looked = looking.map(|node| node.breadth);
        if looked.fold(0, usize::saturating_add) > UNEVALUATED_MAX {
            return Err(format!(
                "its unevaluatedProperties and unevaluatedItems look through more than {UNEVALUATED_MAX} schemas and names"
            ));
        }
        let chain = nodes.iter().map(|node| node.depth).max().unwrap_or(1);
        Ok(Self {
            root,
            nodes,
            chain,
            states,
        })
    }

    /// States of all patterns.
    #[cfg(feature = "mcp")]
    pub(super) fn states(&self) -> usize {
        self.states
    }

    pub(super) fn root(&self) -> &Value {
        &self.root
    }

    /// Estimates the work of validating a value. Must run before the validator.
    pub(super) fn weigh(&self, value: &Value) -> Load {
        let levels_max = JSON_DEPTH_MAX.min(STACKED_MAX / self.chain.max(1));
        if bounds::deeper_than(value, levels_max) {
            return Load::TooDeep(levels_max);
        }
        let of_parts = parts(value).saturating_mul(STEPS_PER_PART);
        let allowed = STEPS_MAX.saturating_add(of_parts).min(STEPS_LIMIT);
        let mut left = allowed;
        match self.ask(0, value, &mut left) {
            None => Load::TooMuch,
            Some(()) if allowed - left > EXPLAINED_MAX => Load::Heavy,
            Some(()) => Load::Light,
        }
    }

    /// Counts the steps of applying a schema; `None` when `left` is used up.
    fn ask(&self, id: Id, value: &Value, left: &mut usize) -> Option<()> {
        let node = self.nodes.get(id)?;
        *left = left.checked_sub(node.own(value))?;
        for _ in 0..node.repeats() {
            for next in &node.in_place {
                self.ask(*next, value, left)?;
            }
        }
        match value {
            Value::Array(items) => {
                for (schemas, item) in node.of_places.iter().zip(items) {
                    for next in schemas {
                        self.ask(*next, item, left)?;
                    }
                }
                for next in &node.of_items {
                    for item in items {
                        self.ask(*next, item, left)?;
                    }
                }
            }
            Value::Object(members) => self.ask_members(node, members, left)?,
            _ => {}
        }
        Some(())
    }

    fn ask_members(
        &self,
        node: &Node,
        members: &Map<String, Value>,
        left: &mut usize,
    ) -> Option<()> {
        for next in &node.of_members {
            for member in members.values() {
                self.ask(*next, member, left)?;
            }
        }
        for next in &node.of_names {
            for name in members.keys() {
                self.ask(*next, &Value::from(name.as_str()), left)?;
            }
        }
        // The smaller side is walked, as the validator does.
        if members.len() <= node.properties.len() {
            for (name, member) in members {
                if let Some(next) = node.properties.get(name) {
                    self.ask(*next, member, left)?;
                }
            }
        } else {
            for (name, next) in &node.properties {
                if let Some(member) = members.get(name) {
                    self.ask(*next, member, left)?;
                }
            }
        }
        for (states, next) in &node.of_patterns {
            for (name, member) in members {
                // Members that no pattern matches are found by matching all once more.
                let matched = 2 * (1 + name.len().saturating_mul(*states) / STATES_PER_STEP);
                *left = left.checked_sub(matched)?;
                self.ask(*next, member, left)?;
            }
        }
        Some(())
    }
}

/// The nodes of a schema while they are made. A reference leads to a node, which may be on the way.
struct Nodes<'a> {
    root: &'a Value,
    ids: HashMap<*const Value, Id>,
    waiting: VecDeque<&'a Value>,
    all: Vec<Node>,
    /// States of all patterns, and the sizes of those that are compiled once for all their places.
    states: usize,
    sizes: HashMap<&'a str, Size>,
    /// The first reference that leads nowhere.
    lost: Option<&'a str>,
}

impl<'a> Nodes<'a> {
    fn of(root: &'a Value) -> Result<Self, String> {
        let mut nodes = Self {
            root,
            ids: HashMap::new(),
            waiting: VecDeque::new(),
            all: Vec::new(),
            states: 0,
            sizes: HashMap::new(),
            lost: None,
        };
        nodes.id(root);
        while let Some(schema) = nodes.waiting.pop_front() {
            let node = match schema {
                Value::Object(fields) => nodes.node(fields),
                _ => Node {
                    base: 1,
                    ..Node::default()
                },
            };
            nodes.all.push(node);
            // Definitions that nothing refers to are measured as well.
            let _ = each_subschema(schema, &mut |_, child| {
                nodes.id(child);
                Ok(())
            });
            if let Some(lost) = nodes.lost {
                let shown = faults::short(&Value::from(lost));
                return Err(format!("it refers to {shown}, which is not in the schema"));
            }
            if nodes.ids.len() > bounds::SUBSCHEMAS_MAX {
                let max = bounds::SUBSCHEMAS_MAX;
                return Err(format!("it contains more than {max} schemas"));
            }
        }
        Ok(nodes)
    }

    /// The node of a schema. Nodes are made in the order in which they are asked for.
    fn id(&mut self, schema: &'a Value) -> Id {
        let next = self.ids.len();
        *self.ids.entry(schema).or_insert_with(|| {
            self.waiting.push_back(schema);
            next
        })
    }

    /// The schema that a reference refers to. All are pointers here ([`make_plain`]).
    fn target(&self, reference: &str) -> Option<&'a Value> {
        let pointer = bounds::percent_decoded(reference.strip_prefix('#')?);
        self.root.pointer(&pointer)
    }

    fn node(&mut self, fields: &'a Map<String, Value>) -> Node {
        let mut node = Node {
            base: 1,
            ..Node::default()
        };
        for (keyword, value) in fields {
            self.add(&mut node, keyword, value);
        }
        node
    }

    /// Adds a keyword to its node. Unknown keywords cost nothing.
    fn add(&mut self, node: &mut Node, keyword: &str, value: &'a Value) {
        match (keyword, value) {
            ("enum", Value::Array(options)) => node.base += cost::of_options(options),
            ("const", value) => node.base += cost::of_comparison(cost::weight(value)),
            ("required", Value::Array(names)) => node.base += names.len() / 4,
            ("multipleOf", Value::Number(number)) if !number.is_i64() && !number.is_u64() => {
                node.base += cost::OF_FRACTIONS;
            }
            ("uniqueItems", Value::Bool(true)) => node.compares_items = true,
            ("pattern", Value::String(text)) => {
                let size = *self.sizes.entry(text).or_insert_with(|| {
                    let size = cost::size(text, || pattern::is_linear(text));
                    self.states = self.states.saturating_add(size.states);
                    size
                });
                match size.is_linear {
                    true => node.of_text = node.of_text.saturating_add(size.states),
                    false => node.backtracks = true,
                }
            }
            // Characters are counted; that takes longer than a state of a pattern.
            ("minLength" | "maxLength", _) => node.of_text += 4,
            (document, _) if OF_DOCUMENTS.contains(&document) => node.reads_document = true,
            (reference, Value::String(to)) if bounds::REFERENCES.contains(&reference) => {
                match self.target(to) {
                    Some(target) => node.in_place.push(self.id(target)),
                    None => drop(self.lost.get_or_insert(to)),
                }
            }
            ("dependentRequired", Value::Object(by_name)) => {
                let named = by_name.values().filter_map(Value::as_array).map(Vec::len);
                node.base += by_name.len() + named.sum::<usize>();
            }
            ("properties", Value::Object(named)) => {
                for (name, schema) in named {
                    let id = self.id(schema);
                    node.properties.insert(name.clone(), id);
                }
            }
            ("patternProperties", Value::Object(patterns)) => {
                for (text, schema) in patterns {
                    let states = cost::size(text, || true).states;
                    self.states = self.states.saturating_add(states);
                    node.of_patterns.push((states, self.id(schema)));
                }
            }
            (keyword, value) => self.add_schemas(node, keyword, value),
        }
    }

    /// Adds a keyword whose value is a schema, or several.
    fn add_schemas(&mut self, node: &mut Node, keyword: &str, value: &'a Value) {
        let is_one_of = |list: &[&str]| list.contains(&keyword);
        if is_one_of(&["unevaluatedProperties", "unevaluatedItems"]) {
            node.finds_unevaluated = true;
        }
        match value {
            Value::Object(by_name) if is_one_of(bounds::IN_PLACE_MAPS) => {
                for (_, schema) in by_name {
                    // Before draft 2019-09, `dependencies` may also list names.
                    node.base += 1 + schema.as_array().map_or(0, Vec::len);
                    node.in_place.push(self.id(schema));
                }
            }
            Value::Array(schemas) if is_one_of(bounds::IN_PLACE_LISTS) => {
                node.in_place
                    .extend(schemas.iter().map(|schema| self.id(schema)));
            }
            Value::Array(schemas) if is_one_of(bounds::BELOW_LISTS) => {
                for (place, schema) in schemas.iter().enumerate() {
                    if node.of_places.len() <= place {
                        node.of_places.push(Vec::new());
                    }
                    let id = self.id(schema);
                    if let Some(ids) = node.of_places.get_mut(place) {
                        ids.push(id);
                    }
                }
            }
            // Takes as long as any keyword.
            Value::Bool(_) => {}
            schema if is_one_of(bounds::IN_PLACE) => node.in_place.push(self.id(schema)),
            schema if is_one_of(bounds::OF_ITEMS) => node.of_items.push(self.id(schema)),
            schema if keyword == "propertyNames" => node.of_names.push(self.id(schema)),
            schema if is_one_of(bounds::OF_MEMBERS) => node.of_members.push(self.id(schema)),
            _ => {}
        }
    }

    /// Measures what a schema applies in place.
    fn measure(&mut self, id: Id, depth: usize) -> Result<Measure, String> {
        let too_long = || {
            format!(
                "more than {IN_PLACE_DEPTH_MAX} of its schemas refer to one another for one and the same value"
            )
        };
        let Some(node) = self.all.get(id) else {
            return Ok(Measure::default());
        };
        if node.depth > 0 {
            return Ok(node.measure());
        }
        // This also ends loops: an in-place cycle exceeds every depth.
        if depth > IN_PLACE_DEPTH_MAX {
            return Err(too_long());
        }
        let own = 1 + node.properties.len() + node.of_patterns.len();
        let (mut asked, mut breadth, mut longest) = (0_usize, own, 0);
        for next in node.in_place.clone() {
            let below = self.measure(next, depth + 1)?;
            asked = asked.saturating_add(below.asked);
            breadth = breadth.saturating_add(below.breadth);
            longest = longest.max(below.depth);
        }
        if longest + 1 > IN_PLACE_DEPTH_MAX {
            return Err(too_long());
        }
        let Some(node) = self.all.get_mut(id) else {
            return Ok(Measure::default());
        };
        node.depth = longest + 1;
        node.breadth = breadth.saturating_mul(node.repeats());
        node.asked = asked.saturating_mul(node.repeats()).saturating_add(1);
        if node.asked > IN_PLACE_MAX {
            return Err(format!(
                "more than {IN_PLACE_MAX} of its schemas are asked of one and the same value"
            ));
        }
        Ok(node.measure())
    }
}

/// What a schema applies in place.
#[derive(Debug, Clone, Copy, Default)]
struct Measure {
    asked: usize,
    breadth: usize,
    depth: usize,
}

/// Number of values in a value, itself included.
fn parts(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(parts).fold(1, usize::saturating_add),
        Value::Object(members) => members.values().map(parts).fold(1, usize::saturating_add),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}
