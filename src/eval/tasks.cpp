// The table of tasks. Prompts, splits, metrics and draws are lm-evaluation-harness 0.4.9.1's; docs/evaluation.md explains the columns.
#include "eval/task.h"

namespace bhyt {

namespace {

Prompt arc_prompt() {
  return {.text = {"Question: {question}\nAnswer:"}, .choices = {"{choices.text}"}, .gold = "{answerKey}", .labels = {"{choices.label}"}};
}

std::vector<SubjectGroup> mmlu_groups() {
  return {
      {"humanities",
       {"formal_logic", "high_school_european_history", "high_school_us_history", "high_school_world_history", "international_law",
        "jurisprudence", "logical_fallacies", "moral_disputes", "moral_scenarios", "philosophy", "prehistory", "professional_law",
        "world_religions"}},
      {"other",
       {"business_ethics", "clinical_knowledge", "college_medicine", "global_facts", "human_aging", "management", "marketing",
        "medical_genetics", "miscellaneous", "nutrition", "professional_accounting", "professional_medicine", "virology"}},
      {"social_sciences",
       {"econometrics", "high_school_geography", "high_school_government_and_politics", "high_school_macroeconomics",
        "high_school_microeconomics", "high_school_psychology", "human_sexuality", "professional_psychology", "public_relations",
        "security_studies", "sociology", "us_foreign_policy"}},
      {"stem",
       {"abstract_algebra", "anatomy", "astronomy", "college_biology", "college_chemistry", "college_computer_science",
        "college_mathematics", "college_physics", "computer_security", "conceptual_physics", "electrical_engineering",
        "elementary_mathematics", "high_school_biology", "high_school_chemistry", "high_school_computer_science", "high_school_mathematics",
        "high_school_physics", "high_school_statistics", "machine_learning"}},
  };
}

std::vector<Task> make_table() {
  const std::vector<Template> letters = {"A", "B", "C", "D", "E"};
  return {
      {.name = "arc_challenge",
       .source = "allenai/ai2_arc (ARC-Challenge)",
       .version = "1",
       .split = "test",
       .example_split = "train",
       .prompts = {arc_prompt()},
       .acc_norm = true},
      {.name = "arc_easy",
       .source = "allenai/ai2_arc (ARC-Easy)",
       .version = "1",
       .split = "test",
       .example_split = "train",
       .prompts = {arc_prompt()},
       .acc_norm = true},
      {.name = "boolq",
       .source = "aps/super_glue (boolq)",
       .version = "2",
       .split = "validation",
       .example_split = "train",
       .prompts = {{.text = {"{passage}\nQuestion: {question}?\nAnswer:"}, .choices = {"no", "yes"}, .gold = "{label}"}},
       .extra_draws = 1},
      {.name = "commonsense_qa",
       .source = "tau/commonsense_qa",
       .version = "Yaml",
       .split = "validation",
       .example_split = "train",
       .prompts = {{.text = {"Question: {question|strip}\nA. {choices.text.0}\nB. {choices.text.1}\nC. {choices.text.2}\n"
                             "D. {choices.text.3}\nE. {choices.text.4}\nAnswer:"},
                    .choices = letters,
                    .gold = "{answerKey}",
                    .labels = letters}},
       .extra_draws = 1},
      {.name = "hellaswag",
       .source = "Rowan/hellaswag",
       .version = "1",
       .split = "validation",
       .example_split = "train",
       .prompts = {{.text = {"{activity_label}: {ctx_a} {ctx_b|capitalize}"},  // as published
                    .choices = {"{endings}"},
                    .gold = "{label}",
                    .clean = "wikihow"},
                   {.text = {"{query}"}, .choices = {"{endings}"}, .gold = "{label}"}},  // cleaned already
       .acc_norm = true,
       .extra_draws = 1},
      {.name = "mmlu",
       .source = "cais/mmlu (all)",
       .version = "1",
       .group_version = "2",
       .split = "test",
       .example_split = "dev",
       .description = "The following are multiple choice questions (with answers) about {subject|spaces}.\n\n",
       .prompts = {{.text = {"{question|strip}\nA. {choices.0}\nB. {choices.1}\nC. {choices.2}\nD. {choices.3}\nAnswer:"},
                    .choices = {"A", "B", "C", "D"},
                    .gold = "{answer}"}},
       .examples = Examples::first,
       .subject_column = "subject",
       .groups = mmlu_groups()},
      {.name = "openbookqa",
       .source = "allenai/openbookqa (main)",
       .version = "1",
       .split = "test",
       .example_split = "train",
       .prompts =
           {{.text = {"{question_stem}"}, .choices = {"{choices.text}"}, .gold = "{answerKey|lstrip}", .labels = {"{choices.label}"}}},
       .acc_norm = true},
      {.name = "piqa",
       .source = "baber/piqa",
       .version = "1",
       .split = "validation",
       .example_split = "train",
       .prompts = {{.text = {"Question: {goal}\nAnswer:"}, .choices = {"{sol1}", "{sol2}"}, .gold = "{label}"}},
       .acc_norm = true,
       .extra_draws = 1},
      {.name = "winogrande",
       .source = "allenai/winogrande (winogrande_xl)",
       .version = "1",
       .split = "validation",
       .example_split = "train",
       .prompts = {{.text = {"{sentence|before _}{option1}", "{sentence|before _}{option2}"},
                    .ending = "{sentence|after _|strip}",
                    .gold = "{answer}",
                    .labels = {"1", "2"}}},
       .extra_draws = 1},
      {.name = "wikitext",
       .source = "EleutherAI/wikitext_document_level (wikitext-2-raw-v1)",
       .version = "2",
       .kind = TaskKind::rolling,
       .split = "test",
       .prompts = {{.text = {"{page}"}}}},
      {.name = "c4",
       .source = "allenai/c4 (en)",
       .version = "0",
       .kind = TaskKind::rolling,
       .split = "validation",
       .prompts = {{.text = {"{text}"}}}},
  };
}

}  // namespace

const std::vector<Task>& task_table() {
  static const std::vector<Task> table = make_table();
  return table;
}

const std::vector<std::string>& paper_tasks() {
  static const std::vector<std::string> names = {"arc_challenge", "arc_easy",   "piqa", "hellaswag",
                                                 "openbookqa",    "winogrande", "mmlu", "boolq"};
  return names;
}

}  // namespace bhyt
