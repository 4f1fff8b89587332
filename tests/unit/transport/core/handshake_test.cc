// Who does not know the secret gets no further, whatever he answers with.
#include "transport/core/handshake.h"

#include "tests/conformance/transport/test_keyed_hash.h"

#include <gtest/gtest.h>

#include <vector>

namespace sgactor::transport {
namespace {

using Role = Handshake::Role;

JobSecret secret_of(int value) {
  JobSecret secret;
  secret.fill(static_cast<std::byte>(value));
  return secret;
}

class HandshakeTest : public testing::Test {
 protected:
  Handshake initiator(int secret = 1, PeerId self = 0, PeerId expected = 1) {
    return {Role::kInitiator, self, expected, secret_of(secret), hash_};
  }
  Handshake acceptor(int secret = 1, PeerId self = 1) {
    return {Role::kAcceptor, self, std::nullopt, secret_of(secret), hash_};
  }
  // Both hellos; returns the initiator's proof.
  static Handshake::Frame greet(Handshake& from, Handshake& to) {
    const auto nothing = to.on_frame(FrameKind::kHello, from.hello().payload);
    EXPECT_TRUE(nothing.ok() && !nothing->has_value()) << "an acceptor proves itself second";
    auto proof = from.on_frame(FrameKind::kHello, to.hello().payload);
    EXPECT_TRUE(proof.ok() && proof->has_value());
    return **proof;
  }
  TestKeyedHash hash_;
};

TEST_F(HandshakeTest, BothEndsAreDoneAfterBothProofs) {
  Handshake from = initiator();
  Handshake to = acceptor();
  const auto proof = greet(from, to);
  EXPECT_FALSE(to.done());
  const auto answer = to.on_frame(proof.kind, proof.payload);
  ASSERT_TRUE(answer.ok() && answer->has_value());
  EXPECT_TRUE(to.done());
  EXPECT_EQ(to.peer(), 0U);
  EXPECT_FALSE(from.done());
  ASSERT_TRUE(from.on_frame((*answer)->kind, (*answer)->payload).ok());
  EXPECT_TRUE(from.done());
}

TEST_F(HandshakeTest, AnotherSecretIsNotProved) {
  Handshake from = initiator(2);
  Handshake to = acceptor(1);
  const auto proof = greet(from, to);
  EXPECT_EQ(to.on_frame(proof.kind, proof.payload).status().code(), Code::kCorruption);
  EXPECT_FALSE(to.done());
}

TEST_F(HandshakeTest, AnInitiatorsOwnProofIsNoAnswer) {
  Handshake from = initiator();
  Handshake to = acceptor();
  const auto proof = greet(from, to);
  EXPECT_FALSE(from.on_frame(proof.kind, proof.payload).ok());
  EXPECT_FALSE(from.done());
}

TEST_F(HandshakeTest, AProofOfAnotherLinkIsNotTakenAgain) {
  Handshake from = initiator();
  Handshake to = acceptor();
  const auto recorded = greet(from, to);
  const auto hello = from.hello();
  Handshake again = acceptor();
  ASSERT_TRUE(again.on_frame(hello.kind, hello.payload).ok());
  EXPECT_FALSE(again.on_frame(recorded.kind, recorded.payload).ok());
}

TEST_F(HandshakeTest, FramesOutOfTurnOrOfAnotherKindAreRefused) {
  const auto hello = initiator().hello();
  EXPECT_FALSE(acceptor().on_frame(FrameKind::kProof, std::vector<std::byte>(32)).ok());
  EXPECT_FALSE(acceptor().on_frame(FrameKind::kData, hello.payload).ok());
  EXPECT_FALSE(acceptor().on_frame(FrameKind::kHello, {}).ok());
  Handshake twice = acceptor();
  ASSERT_TRUE(twice.on_frame(hello.kind, hello.payload).ok());
  EXPECT_FALSE(twice.on_frame(hello.kind, hello.payload).ok());
  for (size_t i = 0; i < 12; ++i) {
    auto damaged = hello.payload;
    damaged[i] ^= std::byte{1};
    EXPECT_FALSE(acceptor().on_frame(FrameKind::kHello, damaged).ok()) << "byte " << i;
  }
}

TEST_F(HandshakeTest, AnotherPeerThanMeantIsRefused) {
  Handshake from = initiator(1, 0, 1);
  EXPECT_FALSE(from.on_frame(FrameKind::kHello, acceptor(1, 2).hello().payload).ok());
  Handshake self = acceptor(1, 0);
  EXPECT_FALSE(self.on_frame(FrameKind::kHello, initiator(1, 0).hello().payload).ok());
}

}  // namespace
}  // namespace sgactor::transport
