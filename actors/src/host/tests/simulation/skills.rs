//! The skills of the world: one that changes nothing, and two that allow some of the tools.

use crate::{
    memory::MemorySkills,
    skill::{Skill, SkillName},
};

/// The name of a skill by number. The last number has no skill.
pub(super) fn name(number: u64) -> &'static str {
    match number {
        0 => "plain",
        1 => "narrow",
        2 => "narrower",
        _ => "unknown",
    }
}

pub(super) fn skills() -> MemorySkills {
    let source = MemorySkills::new();
    let allowed: [Option<&[&str]>; 3] = [None, Some(&["look", "save", "pay"]), Some(&["look"])];
    for (number, allowed) in (0..).zip(allowed) {
        let name = name(number);
        let mut skill = Skill::new(
            SkillName::new(name).unwrap(),
            format!("Does {name}."),
            format!("How to be {name}."),
        );
        let names = |tools: &[&str]| tools.iter().map(|tool| (*tool).to_owned()).collect();
        skill.modifier.allowed_tools = allowed.map(names);
        source.register(skill);
    }
    source
}
