use super::*;

fn name(text: &str) -> SkillName {
    SkillName::new(text).unwrap()
}

fn id(n: u8) -> ActivationId {
    ActivationId::from_random([n; 16])
}

fn frame(text: &str) -> Frame {
    Frame::new(name(text), id(text.as_bytes()[0]), Timestamp(0))
}

fn stack(names: &[&str], policy: &SkillPolicy) -> ActivationStack {
    let mut stack = ActivationStack::default();
    names
        .iter()
        .for_each(|name| stack.push(frame(name), policy).unwrap());
    stack
}

fn refused(stack: &ActivationStack, next: &str, policy: &SkillPolicy) -> String {
    let mut after = stack.clone();
    let error = after.push(frame(next), policy).unwrap_err();
    assert_eq!(after, *stack, "a refused activation changes nothing");
    error.to_string()
}

#[test]
fn three_skills_may_be_active_at_once() {
    let policy = SkillPolicy::default();
    let three = stack(&["a", "b", "c"], &policy);

    assert_eq!(
        refused(&three, "d", &policy),
        "Maximum skill activation depth (3) exceeded. Current stack: a → b → c"
    );
    assert_eq!(
        (three.depth(), three.names()),
        (3, vec![name("a"), name("b"), name("c")])
    );
    assert!(three.contains(&name("b")) && !three.contains(&name("d")));
}

#[test]
fn a_circle_is_reported_with_its_whole_path() {
    let policy = SkillPolicy::default();

    assert_eq!(
        refused(&stack(&["a"], &policy), "a", &policy),
        "Circular dependency detected: a → a"
    );
    assert_eq!(
        refused(&stack(&["a", "b"], &policy), "a", &policy),
        "Circular dependency detected: a → b → a"
    );
    assert!(
        refused(&stack(&["a", "b", "c"], &policy), "b", &policy).starts_with("Circular"),
        "a circle is reported before the depth"
    );
}

#[test]
fn a_skill_that_completed_can_be_used_again() {
    let policy = SkillPolicy::default();
    let mut stack = stack(&["a"], &policy);

    assert!(stack.pop(&name("a"), id(b'a')));

    assert_eq!(stack.push(frame("a"), &policy), Ok(()));
}

#[test]
fn only_the_top_can_be_popped_and_only_by_its_own_id() {
    let policy = SkillPolicy::default();
    let mut two = stack(&["a", "b"], &policy);

    for (skill, activation) in [("a", b'a'), ("b", b'a'), ("a", b'b'), ("c", b'c')] {
        assert!(!two.pop(&name(skill), id(activation)), "{skill}");
    }
    assert_eq!(two, stack(&["a", "b"], &policy));
    assert!(two.pop(&name("b"), id(b'b')) && two.pop(&name("a"), id(b'a')));
    assert!(!two.pop(&name("a"), id(b'a')), "nothing is left");
}

#[test]
fn leaving_the_scope_empties_the_stack() {
    let mut three = stack(&["a", "b", "c"], &SkillPolicy::default());

    three.leave(|frame| frame.skill_name == name("b"));
    assert_eq!(three.names(), [name("b")]);

    three.leave(|_| false);
    assert_eq!(three, ActivationStack::default());
}

#[test]
fn a_frame_has_skill_activation_and_time() {
    let frame = Frame::new(name("a"), id(1), Timestamp(1_500));

    let json = serde_json::to_value(&frame).unwrap();

    assert_eq!(json["skill_name"], "a");
    assert_eq!(json["timestamp"], "1970-01-01T00:00:01.500Z");
    assert_eq!(json["activation_id"], id(1).to_string());
}

#[test]
fn limits_of_single_skills_are_asked_in_their_order() {
    let kinds = SkillPolicy {
        depth_by_kind: true,
        ..SkillPolicy::default()
    };
    let own = SkillPolicy {
        skill_depths: BTreeMap::from([(name("simple-report-generation"), 1)]),
        ..kinds.clone()
    };
    let one = stack(&["a"], &kinds);
    let two = stack(&["a", "b"], &kinds);
    let three = stack(&["a", "b", "c"], &kinds);

    assert_eq!(
        one.check(&name("simple-report-generation"), &kinds),
        Ok(()),
        "what it contains is asked before how it begins"
    );
    assert_eq!(
        refused(&one, "simple-report-generation", &own),
        "Maximum skill activation depth (1) exceeded for simple-report-generation"
    );
    assert_eq!(
        refused(&two, "simple-sum", &kinds),
        "Maximum skill activation depth (2) exceeded for simple-sum"
    );
    assert_eq!(
        two.check(&name("simple-sum"), &SkillPolicy::default()),
        Ok(()),
        "kinds are asked on request only"
    );
    for deep in ["data-analysis", "my-report-generation", "multi-chart-x"] {
        assert_eq!(three.check(&name(deep), &kinds), Ok(()), "{deep}");
    }
    assert!(refused(&three, "other", &kinds).contains("Current stack"));
}

#[test]
fn a_budget_takes_the_place_of_the_depth_and_a_circle_stays_one() {
    let policy = SkillPolicy {
        token_budget: Some(3500),
        ..SkillPolicy::default()
    };
    let five = stack(&["a", "b", "c", "d", "e"], &policy);

    assert_eq!(
        refused(&five, "f", &policy),
        "Token budget exhausted: 0 remaining"
    );
    assert!(refused(&five, "a", &policy).starts_with("Circular"));
    let nothing = SkillPolicy {
        token_budget: Some(0),
        ..SkillPolicy::default()
    };
    assert_eq!(
        ActivationStack::default().check(&name("a"), &nothing),
        Ok(()),
        "the first is not nested"
    );
    assert_eq!(
        refused(&stack(&["a"], &nothing), "b", &nothing),
        "Token budget exhausted: 0 remaining"
    );
    let endless = SkillPolicy {
        token_budget: Some(u64::MAX),
        ..SkillPolicy::default()
    };
    let names: Vec<String> = (0..64).map(|n| format!("s{n}")).collect();
    let full = stack(
        &names.iter().map(String::as_str).collect::<Vec<_>>(),
        &endless,
    );
    assert!(
        refused(&full, "more", &endless).starts_with("Maximum skill activation depth (64)"),
        "nothing nests without an end"
    );
}

/// For any sequence of pushes and pops: no name appears twice, the depth limit holds, the order is
/// kept, and a stored stack reads back equal.
#[test]
fn the_stack_keeps_its_laws_whatever_happens() {
    for seed in 0..300u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
        let mut next = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let policy = SkillPolicy {
            max_depth: u32::try_from(next(6)).unwrap(),
            depth_by_kind: next(2) == 0,
            token_budget: (next(3) == 0).then(|| next(5000)),
            ..SkillPolicy::default()
        };
        let mut stack = ActivationStack::default();
        let mut model: Vec<(SkillName, ActivationId)> = Vec::new();
        for n in 0..60u8 {
            let skill = name(&format!("s{}", next(6)));
            match next(5) {
                0..=2 => {
                    let twice = model.iter().any(|(known, _)| *known == skill);
                    let pushed = stack.push(
                        Frame::new(skill.clone(), id(n), Timestamp(u64::from(n))),
                        &policy,
                    );
                    assert!(!(twice && pushed.is_ok()), "seed {seed}: {skill} twice");
                    assert_eq!(
                        matches!(pushed, Err(ActivationError::Circular(_))),
                        twice,
                        "seed {seed}"
                    );
                    if pushed.is_ok() {
                        model.push((skill, id(n)));
                    }
                }
                3 => {
                    let top = model.last().cloned();
                    let right = top.as_ref().is_some_and(|(known, _)| *known == skill);
                    let activation = top.map_or(id(n), |(_, activation)| activation);
                    assert_eq!(stack.pop(&skill, activation), right, "seed {seed}");
                    if right {
                        model.pop();
                    }
                }
                _ => {
                    stack.leave(|frame| frame.skill_name != skill);
                    model.retain(|(known, _)| *known != skill);
                }
            }
            let names: Vec<SkillName> = model.iter().map(|(known, _)| known.clone()).collect();
            assert_eq!(
                (stack.names(), stack.depth()),
                (names, model.len()),
                "seed {seed}"
            );
            let limit = if policy.token_budget.is_some() {
                ACTIVE_SKILLS_MAX
            } else {
                policy.max_depth
            };
            assert!(
                stack.depth() <= limit as usize,
                "seed {seed}: {} are active",
                stack.depth()
            );
            let stored = serde_json::to_string(&stack).unwrap();
            assert_eq!(
                serde_json::from_str::<ActivationStack>(&stored).unwrap(),
                stack,
                "seed {seed}"
            );
        }
    }
}
