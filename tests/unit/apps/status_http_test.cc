#include "apps/sgactor/status_http.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace sgactor::apps {
namespace {

constexpr int64_t kLimitMs = 5000;
constexpr const char* kPlain = "text/plain; charset=utf-8";

Result<std::unique_ptr<HttpServer>> serve(const std::string& where, HttpServer::Answer answer) {
  SGA_ASSIGN(const NetAddress address, parse_net_address(where));
  return HttpServer::listen(address, std::move(answer));
}

TEST(StatusHttp, AnswersWhatItIsAskedFor) {
  const auto server = serve("127.0.0.1:0", [](const std::string& path) -> HttpReply {
    if (path == "/throws") throw std::runtime_error("no");
    return {path == "/a" ? 200 : 404, kPlain, "of " + path};
  });
  ASSERT_TRUE(server.ok()) << server.status().to_string();
  const NetAddress at = (*server)->address();
  EXPECT_EQ(at.host, "127.0.0.1");
  EXPECT_NE(at.port, 0);
  const auto found = http_get(at, "/a?b=c", kLimitMs);
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(found->status, 200);
  EXPECT_EQ(found->type, kPlain);
  EXPECT_EQ(found->body, "of /a");
  EXPECT_EQ(http_get(at, "/b", kLimitMs)->status, 404);
  EXPECT_EQ(http_get(at, "/throws", kLimitMs)->status, 500);
}

TEST(StatusHttp, AnAddressHasOneServer) {
  const auto answer = [](const std::string&) { return HttpReply{200, kPlain, "here"}; };
  auto server = serve("127.0.0.1:0", answer);
  ASSERT_TRUE(server.ok());
  const NetAddress at = (*server)->address();
  const auto second = HttpServer::listen(at, answer);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kUnsupported);
  EXPECT_EQ(second.status().scope(), Scope::kDevice);
  EXPECT_EQ(second.status().message(),
            "cannot listen on " + to_string(at) + ": Address already in use");
  // When it has gone the address is free at once, and nobody answers there.
  server->reset();
  const auto gone = http_get(at, "/", kLimitMs);
  ASSERT_FALSE(gone.ok());
  EXPECT_EQ(gone.status().message(), to_string(at) + " does not answer: no connection");
  EXPECT_TRUE(HttpServer::listen(at, answer).ok());
}

TEST(StatusHttp, TakesNoEndlessAnswer) {
  const auto server = serve("127.0.0.1:0", [](const std::string& path) {
    const size_t size = (size_t{16} << 20) + (path == "/more" ? 1 : 0);
    return HttpReply{200, "application/octet-stream", std::string(size, 'x')};
  });
  ASSERT_TRUE(server.ok());
  const auto whole = http_get((*server)->address(), "/", kLimitMs);
  ASSERT_TRUE(whole.ok()) << whole.status().to_string();
  EXPECT_EQ(whole->body.size(), size_t{16} << 20);
  const auto more = http_get((*server)->address(), "/more", kLimitMs);
  ASSERT_FALSE(more.ok());
  EXPECT_NE(more.status().message().find("its answer is too long"), std::string::npos);
}

}  // namespace
}  // namespace sgactor::apps
