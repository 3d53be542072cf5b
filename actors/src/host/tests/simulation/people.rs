//! The people of the world: they send prompts, approve, interrupt, fork, delete. They record what they were answered, and nothing else.

use std::{sync::Arc, time::Duration};

use super::{
    plan::{Act, Who},
    schemas, skills,
    world::{Answer, Sent, World},
};
use crate::{
    chat::Attachment,
    conversation::round::OnBusy,
    host::{ConversationHandle, FanOut, Host, Prompt, SendError, SendPrompt},
    ids::Scope,
    testing::media::png,
};

/// A fan-out that was begun and may have to be attached to by the next process.
#[derive(Debug, Clone)]
pub(super) struct BegunFanOut {
    pub(super) tenant: u64,
    pub(super) name: String,
    pub(super) tasks: u64,
    pub(super) is_done: bool,
    /// Whether the process follows it.
    pub(super) is_followed: bool,
}

/// The clients of one process.
#[derive(Clone)]
pub(super) struct People {
    pub(super) world: Arc<World>,
    pub(super) host: Host,
}

fn tenant(number: u64) -> String {
    format!("t-{number}")
}

/// How often a client sends a prompt again whose outcome it does not know.
const SENDS_MAX: u32 = 4;

impl People {
    fn conversation(&self, who: Who) -> ConversationHandle {
        let id = format!("c-{}", who.conversation);
        self.host.tenant(tenant(who.tenant)).conversation(id)
    }

    pub(super) fn handle(&self, scope: &Scope) -> ConversationHandle {
        let Scope {
            tenant,
            conversation,
        } = scope.clone();
        self.host.tenant(tenant).conversation(conversation)
    }

    /// Begins one act; what takes time runs in a task.
    pub(super) fn begin(&self, act: Act) {
        let me = self.clone();
        self.world.log(format_args!("{act:?}"));
        match act {
            Act::Prompt {
                who,
                on_busy,
                has_key,
            } => me.prompt(who, on_busy, has_key),
            Act::Sleep => self.host.hibernate_idle(),
            Act::Observe(who) => {
                let scope = self.conversation(who).scope();
                scope.into_iter().for_each(|scope| self.observe(scope));
            }
            Act::FanOut { tenant, tasks } => {
                let name = self.world.with(|facts| {
                    let name = format!("f{}", facts.fan_outs.len());
                    let begun = BegunFanOut {
                        tenant,
                        name: name.clone(),
                        tasks,
                        is_done: false,
                        is_followed: false,
                    };
                    facts.fan_outs.push(begun);
                    name
                });
                tokio::spawn(async move { me.fan_out(tenant, name, tasks).await });
            }
            Act::ClockJumps { ms } => self.world.jump(ms),
            Act::Pause { tenant, paused } => self.pause(tenant, paused),
            Act::Kill | Act::Restart { .. } => {}
            act => drop(tokio::spawn(async move {
                let code = me
                    .request(act)
                    .await
                    .map_or_else(|error| error.code(), |()| "done");
                me.world.log(format_args!("{act:?}: {code}"));
            })),
        }
    }

    async fn request(&self, act: Act) -> Result<(), SendError> {
        match act {
            Act::Interrupt(who) => self.conversation(who).interrupt().await,
            Act::Inject(who) => {
                let position = self.world.position();
                let text = format!("t-{}/ injected {position}", who.tenant);
                self.conversation(who)
                    .inject(Some(format!("i{position}")), text)
                    .await
            }
            Act::Pin(who) => self.conversation(who).pin("mind the gap").await,
            Act::Compact(who) => self.conversation(who).compact().await.map(drop),
            Act::Rewind(who) => {
                let rounds = self.conversation(who).rounds().await?;
                let nth = self.world.people_dice.below(rounds.len() as u64) as usize;
                match rounds.get(nth) {
                    Some(round) => self.conversation(who).rewind(round.round_id).await,
                    None => Ok(()),
                }
            }
            Act::Fork { who, into } => self
                .conversation(who)
                .fork(format!("c-{into}"), None)
                .await
                .map(drop),
            Act::Reset(who) => self.erase(who, async |talk| talk.reset().await).await,
            Act::Delete(who) => {
                let deleted = async |talk: ConversationHandle| talk.delete().await.map(drop);
                self.erase(who, deleted).await
            }
            Act::Skill {
                who,
                number,
                active,
            } => {
                let (talk, name) = (self.conversation(who), skills::name(number));
                match active {
                    true => talk.activate_skill(name).await,
                    false => talk.deactivate_skill(name).await,
                }
            }
            Act::EraseTenant(number) => self.erase_tenant(number).await,
            Act::Prompt { .. }
            | Act::Sleep
            | Act::Observe(_)
            | Act::FanOut { .. }
            | Act::Pause { .. }
            | Act::ClockJumps { .. }
            | Act::Kill
            | Act::Restart { .. } => Ok(()),
        }
    }

    /// Deletes or resets a conversation. What was sent before its end may be gone.
    async fn erase(
        &self,
        who: Who,
        erase: impl AsyncFnOnce(ConversationHandle) -> Result<(), SendError>,
    ) -> Result<(), SendError> {
        let talk = self.conversation(who);
        let scope = talk.scope()?;
        let begun = self.world.begin_erasure(&scope);
        let erased = erase(talk).await;
        self.world.end_erasure(&scope, begun, erased.is_ok());
        erased
    }

    pub(super) fn pause(&self, number: u64, paused: bool) {
        let _ = self.host.tenant(tenant(number)).pause(paused);
        self.world
            .with(|facts| facts.figures.pauses += u64::from(paused));
    }

    /// Erases a tenant. One that the store refused is erased again at rest.
    pub(super) async fn erase_tenant(&self, number: u64) -> Result<(), SendError> {
        let handle = self.host.tenant(tenant(number));
        let begun = self.world.begin_tenant_erasure(number);
        let erased = handle.erase().await;
        self.world.end_tenant_erasure(number, begun, erased.is_ok());
        erased.map(drop)
    }

    /// What is sent: the text, and what the run adds to it.
    fn sending(&self, sent: &Sent) -> SendPrompt {
        let mut prompt = Prompt::text(sent.text.clone());
        if sent.has_picture
            && let Ok(picture) = Attachment::sniffed(&png(3, 2))
        {
            prompt = prompt.attach(picture);
        }
        let mut sending = self.handle(&sent.scope).send(prompt).on_busy(sent.on_busy);
        if sent.has_schema {
            sending = sending.output_schema(schemas::schema());
        }
        if let Some(key) = &sent.key {
            sending = sending.client_key(key.clone());
        }
        sending
    }

    fn prompt(self, who: Who, on_busy: OnBusy, has_key: bool) {
        let position = self.world.position();
        let Ok(scope) = self.conversation(who).scope() else {
            return;
        };
        let text = format!("t-{}/c-{} says {position}", who.tenant, who.conversation);
        let (extras, dice) = (self.world.plan.extras, &self.world.extra_dice);
        let has_picture = dice.percent(extras.pictures);
        let has_schema = dice.percent(extras.schemas);
        let index = self.world.with(|facts| {
            facts.figures.prompts += 1;
            facts.sent.push(Sent {
                scope,
                text,
                key: has_key.then(|| format!("key {position}")),
                on_busy,
                has_picture,
                has_schema,
                answer: Answer::Pending,
                sends: 0,
                sent_at: position,
                answered_at: u64::MAX,
            });
            facts.sent.len() - 1
        });
        tokio::spawn(async move { self.send(index).await });
    }

    /// Sends a prompt until its outcome is known, then watches its round.
    pub(super) async fn send(&self, index: usize) {
        loop {
            let sent = self.world.with(|facts| {
                facts.sent[index].sends += 1;
                facts.sent[index].clone()
            });
            let tenant = self.host.tenant(sent.scope.tenant.clone());
            let is_paused = tenant.is_paused().unwrap_or_default();
            let answer = self.sending(&sent).await;
            let answered_at = self.world.position();
            let (answer, reply) = match answer {
                Ok(reply) => {
                    let (round, replayed) = (reply.round_id(), reply.is_replayed());
                    (Answer::Accepted { round, replayed }, Some(reply))
                }
                Err(error) => (Answer::Refused(error.code().to_owned()), None),
            };
            if is_paused
                && matches!(
                    answer,
                    Answer::Accepted {
                        replayed: false,
                        ..
                    }
                )
            {
                self.world
                    .violated(format!("`{}` is accepted in a pause", sent.text));
            }
            self.world.log(format_args!("{}: {answer:?}", sent.text));
            self.world.with(|facts| {
                match &answer {
                    Answer::Refused(_) => facts.figures.refused += 1,
                    _ => facts.figures.accepted += 1,
                }
                let sent = &mut facts.sent[index];
                sent.answer = answer.clone();
                if !answer.is_unknown() {
                    sent.answered_at = answered_at;
                }
            });
            if let Some(reply) = reply {
                return self.watch(sent.scope, reply).await;
            }
            let again = sent.key.is_some() && sent.sends < SENDS_MAX && answer.is_unknown();
            if !again {
                return;
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }

    pub(super) fn approve(&self, scope: Scope, tool_call_id: String) {
        let me = self.clone();
        let dice = &self.world.people_dice;
        let (after, allow) = (Duration::from_millis(dice.below(6000)), dice.percent(70));
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let answer = me.handle(&scope).approve(tool_call_id, allow).await;
            let code = answer.map_or_else(|error| error.code(), |()| "done");
            me.world.with(|facts| facts.figures.approvals += 1);
            me.world.log(format_args!("approval in {scope}: {code}"));
        });
    }

    /// Runs a fan-out, or attaches to what an earlier process left of it.
    pub(super) async fn fan_out(&self, number: u64, name: String, tasks: u64) {
        let texts = (0..tasks).map(|n| format!("t-{number}/ task {n} of {name}"));
        let fan_out = FanOut::over(texts).name(name.clone());
        let mut run = match self.host.tenant(tenant(number)).fan_out(fan_out).await {
            Ok(run) => run,
            Err(error) => {
                let code = error.code();
                self.world.log(format_args!("fan-out {name}: {code}"));
                // A paused tenant begins none.
                return self.world.fan_out(&name, |begun| {
                    begun.is_done |= code == "tenant_paused";
                });
            }
        };
        self.world.fan_out(&name, |begun| begun.is_followed = true);
        let mut ended = std::collections::BTreeSet::new();
        while let Some(end) = run.next().await {
            let code = end
                .outcome
                .as_ref()
                .map_or_else(|failed| failed.failure.code.as_str(), |_| "done");
            self.world.log(format_args!(
                "fan-out {name}: task {} ends, {code}",
                end.index
            ));
            self.world.with(|facts| facts.figures.fan_out_ends += 1);
            if !ended.insert(end.index) {
                self.world
                    .violated(format!("task {} of fan-out {name} ended twice", end.index));
            }
        }
        let _ = run.finish().await;
        if ended.len() as u64 != tasks {
            self.world.violated(format!(
                "fan-out {name} ended {} of {tasks} tasks",
                ended.len()
            ));
        }
        self.world.fan_out(&name, |begun| {
            begun.is_done = true;
            begun.is_followed = false;
        });
    }
}
