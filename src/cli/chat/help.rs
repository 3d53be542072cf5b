//! What `/help` prints. Tab completes the commands that it names.

pub(super) const HELP: &str = "\
/tools    the tools that the model is offered
/skills   the skills; /skills NAME [LEVEL] activates one, /skills -NAME deactivates it
/history  the messages, round by round
/fork     copy this conversation: /fork [NAME] [ROUND]
/rewind   undo a round and all later ones: /rewind ROUND
/metrics  usage and timing of this conversation
/sessions choose a session to continue from a list; /sessions NUMBER continues one
/edit     write the next prompt in $VISUAL or $EDITOR; /edit TEXT begins with a text
/attach FILE  add an image or a PDF to the next prompt; pasting the path of an image does too
/model    the model; /model NAME goes on with another one, /model PROVIDER/NAME with another provider
/tokens   tokens and cost so far, and the limits of the budget
/compact  make the context smaller now; waits up to ten seconds for a summary
/help     this list
/quit     leave (also Ctrl-D)
!COMMAND  run a command in the sandbox; the model reads it and its output with the next prompt
!!COMMAND run a command in the sandbox; the model does not see it
@FILE     in a prompt: send the file with it
Esc       cancels the running round; what waits in the queue is sent then
Esc Esc   at an empty line: take the last prompt back, with its text in the line
Ctrl-O    the whole output of the last tool call that was cut, also while a round runs
Ctrl-G    write the line in $VISUAL or $EDITOR
Ctrl-V    add the image of the clipboard to the next prompt
Ctrl-C    cancels the running round and empties the queue; twice leaves
exit and quit alone leave too, help alone prints this list.
Tab completes commands and @FILE. Alt-Enter breaks a line, and so does Enter behind one backslash. What you type while a round runs waits in a queue.
At a question: y runs the call, a also all that are the same, e changes its arguments first, d refuses with words, n refuses.";
