/* What the mock engines answer that does not change. */
#ifndef NARWHAL_BENCH_TEXTS_H
#define NARWHAL_BENCH_TEXTS_H

#define ID "8f1b5f2e6c0a4d0e9b7b5f0b6c1a2d3e"
#define PROMPT_TOKENS 512
static char prompt_ids[PROMPT_TOKENS * 6 + 3] = "null";

/* The end of leg 1's answer, handoff included. */
static const char leg1_rest[] =
    "\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null,\"prompt_logprobs\":null,"
    "\"prompt_token_ids\":null}],\"service_tier\":null,\"system_fingerprint\":null,\"usage\":{\"prompt_tokens\":512,"
    "\"total_tokens\":513,\"completion_tokens\":1,\"prompt_tokens_details\":null},\"kv_transfer_params\":{"
    "\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_block_ids\":[[101,102,103,104,105,106,107,108,"
    "109,110,111,112,113,114,115,116,117,118,119,120,121,122,123,124,125,126,127,128,129,130,131,132]],"
    "\"remote_engine_id\":\"0f3b7d52-0a3c-4a2e-9b0d-2f0e4f9f7f10\",\"remote_request_id\":\"cmpl-8f1b5f2e\","
    "\"remote_host\":\"127.0.0.1\",\"remote_port\":5600,\"tp_size\":1,\"remote_num_tokens\":512}}";

/* What routers ask an engine besides work, by the start of its path. */
static const struct {
  const char *path, *type, *body;
} pages[] = {
    {"/v1/models", "application/json",
     "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\",\"created\":1764470000,"
     "\"owned_by\":\"vllm\",\"root\":\"mock\",\"parent\":null,\"max_model_len\":131072}]}"},
    {"/health", "text/plain", ""},
    {"/ping", "text/plain", ""},
    {"/version", "application/json", "{\"version\":\"0.26.0\"}"},
    {"/get_server_info", "application/json",
     "{\"model_path\":\"mock\",\"served_model_name\":\"mock\",\"tp_size\":1,\"dp_size\":1,\"version\":\"0.5\"}"},
    {"/server_info", "application/json",
     "{\"model_path\":\"mock\",\"served_model_name\":\"mock\",\"tp_size\":1,\"dp_size\":1,\"version\":\"0.5\"}"},
    {"/get_model_info", "application/json", "{\"model_path\":\"mock\",\"tokenizer_path\":\"\",\"is_generation\":true}"},
    {"/model_info", "application/json", "{\"model_path\":\"mock\",\"tokenizer_path\":\"\",\"is_generation\":true}"},
    {"/metrics", "text/plain; version=0.0.4; charset=utf-8",
     "process_start_time_seconds 1764470000.0\n"
     "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"200000\",kv_cache_size_tokens=\"3200000\"} 1.0\n"
     "vllm:num_requests_running{engine=\"0\",model_name=\"mock\"} 0.0\n"
     "vllm:num_requests_waiting{engine=\"0\",model_name=\"mock\"} 0.0\n"
     "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"mock\"} 0.0\n"},
};

#endif
